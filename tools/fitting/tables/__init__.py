"""Kernel tables of others into ``configs/calibration``."""
