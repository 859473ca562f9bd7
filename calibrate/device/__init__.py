"""The device: what it is, how it is timed, whole models and collectives on it."""
