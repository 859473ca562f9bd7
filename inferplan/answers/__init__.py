"""Questions answered with estimates: sweep, compare, recipe, fit, cost, emit, explain."""
