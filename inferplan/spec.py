"""The base of every value that is read from YAML: frozen, and strict about fields it does not know."""

from pydantic import BaseModel, ConfigDict


class Spec(BaseModel):
    """A frozen pydantic model that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), defer_build=True)
