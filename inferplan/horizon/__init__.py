"""Months of machines: what to buy, reserve and release, under demand that nobody knows yet (docs/horizon.md)."""
