"""What the work runs on: hardware, serving engines with their defaults, fitted constants."""
