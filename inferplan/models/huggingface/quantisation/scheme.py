"""What a quantisation table says of each module, and the helpers that its readers share."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from inferplan.errors import SpecError
from inferplan.models.huggingface.quantisation.rules import Module, Rule
from inferplan.models.huggingface.reader import Reader
from inferplan.work.formats import FORMATS

Decision = Callable[[Module], str | None]


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """What a table says.

    stored: the format of a module's weight, ``None`` for one that stays wide. elsewhere: the same as another loader
    takes it, and that loader's name, where they may differ. divides: input columns must be whole groups, or the module
    stays wide. by_expert: experts of one layer may differ, so that all of them are asked. activations, kv: formats of
    the inputs of quantised matrices, and of the cache.
    """

    stored: Decision
    elsewhere: Decision | None = None
    loaders: tuple[str, str] = ("vLLM", "transformers")
    activations: str | None = None
    kv: str | None = None
    divides: bool = False
    by_expert: bool = True
    notes: list[str] = field(default_factory=list)


def refuse(table: Reader, field_name: str, because: str, hint: str = "") -> SpecError:
    """The error that names a field of the table."""
    return table.refuse(field_name, because, hint)


def finish(table: Reader, *unimportant: str) -> None:
    """Refuse what nobody has read, by name; ``unimportant`` are the method's own fields that change no byte."""
    table.skip(*unimportant)
    left = [
        key
        for key, value in table.config.items()
        if key not in table.read | table.skipped
        and value is not None
        and value is not False
        and value not in ("", [], {})
    ]
    if left:
        raise SpecError(
            f"{table.name}: {', '.join(table.prefix + key for key in left)} is not understood",
            because="it could change which tensors are quantised, or how",
            hint="take the field out if it does not matter",
        )


def names(table: Reader, *fields: str) -> list[str]:
    """The entries of a list of module names; absent is empty."""
    found: list[str] = []
    for name in fields:
        value = table.get(name)
        if value is None:
            continue
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise refuse(table, name, f"it is {value!r}, not a list of module names")
        found += value
    for pattern in found:
        if pattern.startswith("re:"):
            expression(table, pattern[3:])
    return found


def known(table: Reader, field_name: str, name: str) -> str:
    """The format of that name. Raises ``SpecError`` that names the field when there is none."""
    if name not in FORMATS:
        raise refuse(table, field_name, f"no format {name} in inferplan/work/formats.py")
    return name


def unless(skipped: Rule, stored: str | None, *, head: bool = False) -> Decision:
    """One format for every linear layer that is not skipped; the head only where it is said."""

    def decide(module: Module) -> str | None:
        if module.kind != "Linear" or skipped(module) is not None:
            return None
        return stored if head or not is_head(module) else None

    return decide


def is_head(module: Module) -> bool:
    """Whether it is the head of the vocabulary."""
    return module.layer is None and module.kind == "Linear" and module.name in HEADS


HEADS = ("lm_head", "output", "embed_out", "head", "transformer.output_layer", "model.transformer.ff_out")


def groups(value: Any) -> int | None:
    """A group size; -1 and absent are a whole row."""
    return None if value in (None, -1) else value


def lists(table: Reader, *fields: str) -> list[str]:
    """A list of names, or of lists of names, or names between commas, as one list."""
    value = table.get(*fields)
    value = value.split(",") if isinstance(value, str) else value or []
    inner = (
        [name for entry in value for name in (entry if isinstance(entry, list) else [entry])]
        if (isinstance(value, list))
        else [None]
    )
    if not all(isinstance(name, str) for name in inner):
        raise refuse(table, fields[0], f"it is {value!r}, not a list of module names")
    return [name for name in inner if name]


def tables(table: Reader, name: str) -> dict[str, Reader]:
    """A mapping of names to tables of their own."""
    outer = table.table(name)
    found = {}
    for key in outer.config if outer is not None else ():
        inner = outer.table(key) if outer is not None else None
        if inner is None:
            raise refuse(table, f"{name}.{key}", "it is empty")
        found[key] = inner
    return found


def expression(table: Reader, pattern: str) -> re.Pattern[str]:
    """A pattern as an expression. Raises ``SpecError`` where it is none."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise refuse(table, f"pattern {pattern!r}", f"it is no expression: {error}") from None
