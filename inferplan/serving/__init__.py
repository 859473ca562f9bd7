"""Serving under load: steady state, simulation, and one file for each technique."""
