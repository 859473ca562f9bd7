"""Measure the operators of inferplan on a real device and fit its constants."""
