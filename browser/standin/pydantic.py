"""What is imported of pydantic where files are read: the name of its error, which is not raised in the browser."""


class ValidationError(ValueError):
    """Of a value that cannot be."""
