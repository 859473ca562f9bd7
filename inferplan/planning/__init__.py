"""From demand and limits to a plan: the space, its closed-form grid, the search, the check by simulation."""
