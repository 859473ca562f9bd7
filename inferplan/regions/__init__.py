"""A day in several regions: which of them serves whom in which hour, with how many machines (docs/regions.md)."""
