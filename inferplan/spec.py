"""The base of every value that is read from YAML: frozen, and strict about fields it does not know."""

from collections.abc import Mapping
from typing import Any, Self

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

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """The same with some fields changed. What it had worked out from its fields is not carried over: pydantic
        copies the values of cached properties too, which those of other fields may not be."""
        copied = super().model_copy(update=update, deep=deep)
        if update:
            for name in vars(copied).keys() - type(self).model_fields.keys():
                del vars(copied)[name]
        return copied
