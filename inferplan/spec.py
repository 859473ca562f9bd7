"""The base of every value that is read from YAML: frozen, and strict about fields it does not know."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from inferplan.units import MOST


class Spec(BaseModel):
    """A frozen pydantic model that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_overflow(cls, data: Any) -> Any:
        """No integer that is too large to mean anything: arithmetic on it would overflow."""
        if isinstance(data, dict):
            for name, value in data.items():
                if isinstance(value, int) and abs(value) > MOST:
                    raise ValueError(f"{name} is more than anything here can count ({MOST:.0e})")
        return data
