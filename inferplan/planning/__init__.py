"""From demand and limits to a plan: the space, its closed-form surface, the search, the check by simulation."""
