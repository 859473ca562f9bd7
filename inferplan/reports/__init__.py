"""Screens, pages and pictures of results; nothing is computed here."""
