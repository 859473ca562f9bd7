"""From what a server recorded of its steps to constants of its own: readers of records, and the fit."""
