"""One file a serving technique, each with its closed form."""
