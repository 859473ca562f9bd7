"""Requests and when they arrive: recipes and recorded traces."""
