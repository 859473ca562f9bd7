"""The base of every value that is read from YAML: frozen, and strict about fields it does not know."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from inferplan.errors import has_control, printable
from inferplan.units import MOST


class Spec(BaseModel):
    """A frozen pydantic model that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), defer_build=True)

    @classmethod
    def default(cls) -> Self:
        """The one whose fields all have their defaults, built without a schema: a start has many of them.

        Raises ``TypeError`` where a field has none: an object without it would be made all the same.
        """
        if lacking := [name for name, field in cls.model_fields.items() if field.is_required()]:
            raise TypeError(f"{cls.__name__} has no default: {', '.join(lacking)} is required")
        return cls.model_construct()  # type: ignore[return-value]  # pydantic's plug-in says Spec

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_no_field_means(cls, data: Any) -> Any:
        """Raise ``ValidationError``, at the field, for a value that pydantic would take and that means nothing."""
        if isinstance(data, dict):
            problems = [(name, value, why) for name, value in data.items() if (why := cls._wrong(name, value))]
            if problems:
                found = [
                    InitErrorDetails(
                        type=PydanticCustomError("meaningless", "{why}", {"why": why}), loc=(name,), input=value
                    )
                    for name, value, why in problems
                ]
                raise ValidationError.from_exception_data(cls.__name__, found)
        return data

    @classmethod
    def _wrong(cls, name: str, value: Any) -> str:
        """An integer on which arithmetic would overflow; a switch where a number belongs, which pydantic takes for 1
        or 0; control characters, which would reach a terminal with the text.
        """
        if isinstance(value, int):
            if abs(value) > MOST:
                return f"more than anything here can count ({MOST:.0e})"
            return (
                f"{str(value).lower()} is not a number" if isinstance(value, bool) and not cls._is_switch(name) else ""
            )
        if isinstance(value, str):
            wrong = has_control(value) or (name == "name" and not value.isprintable())
            return f"control characters in {printable(value)[:40]}" if wrong else ""
        if isinstance(value, list) and any(one is True or one is False for one in value) and not cls._is_switch(name):
            return "true and false are not numbers"
        return ""

    @classmethod
    def _is_switch(cls, name: str) -> bool:
        """Whether a field may be true or false."""
        return name not in cls.model_fields or "bool" in repr(cls.model_fields[name].annotation)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """The same with some fields changed. What it had worked out from its fields is not carried over: pydantic
        copies the values of cached properties too, which those of other fields may not be."""
        copied = super().model_copy(update=update, deep=deep)
        if update:
            for name in vars(copied).keys() - type(self).model_fields.keys():
                del vars(copied)[name]
        return copied
