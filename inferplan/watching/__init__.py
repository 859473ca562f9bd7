"""A service that runs beside its prediction: what it does each minute, what it should, and what changed."""
