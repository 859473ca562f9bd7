"""What a forward step asks for: operators, number formats, load and division. Geometry only, no time."""
