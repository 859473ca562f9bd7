"""Models: their YAML form, layers, checkpoints, and the configs of other libraries."""
