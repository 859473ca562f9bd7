"""``docs/accuracy.md``: every figure in it is computed here, from the reference data and the shipped constants."""
