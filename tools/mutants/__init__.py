"""Small mistakes planted in our code, one at a time, and the tests that must notice: ``python -m tools.mutants``."""
