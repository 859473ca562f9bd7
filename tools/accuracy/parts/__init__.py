"""Each part of a price against public rows: ``docs/accuracy-parts.md``."""
