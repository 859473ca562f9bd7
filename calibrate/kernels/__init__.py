"""Every operator as a torch call, with a float64 reference."""
