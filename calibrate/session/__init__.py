"""One calibration of the device at hand: the run, its raw file, the fit, the check, the report."""
