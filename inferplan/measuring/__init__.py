"""Live servers behind an OpenAI-compatible API: what they say of themselves, and how long their replies take.

Nothing here knows models or predictions. ``session`` measures; ``figures`` turns its replies into a row for each load.
"""
