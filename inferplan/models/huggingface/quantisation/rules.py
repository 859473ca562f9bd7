"""Which modules a pattern of a quantisation table means: one rule a loader.

A rule is made of the patterns of one table and answers for one module at a time with the pattern that means it, or
``None``. Patterns are compared without the root of the model: a model alone has another than one beside towers.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal

_ROOT = re.compile(
    r"^(thinker\.model\.|model\.language_model\.model\.|model\.language_model\.|language_model\.model\.|language_model\.(?=lm_head)"
    r"|model\.decoder\.|model\.transformer\.|model\.|backbone\.|transformer\.encoder\.|transformer\.|gpt_neox\.|rwkv\.)"
)
_PLACE = re.compile(r"(?:layers|h|blocks)\.(\d+)\.")


@dataclass(frozen=True)
class Module:
    """A module: its name without the root of the model, the name with it, and its class in torch."""

    name: str
    full: str
    kind: Literal["Linear", "Embedding"] = "Linear"

    @cached_property
    def layer(self) -> int | None:
        """The number of its layer."""
        place = _PLACE.match(self.name)
        return int(place[1]) if place else None

    @cached_property
    def paths(self) -> list[str]:
        """Every run of whole parts of its name: ``mlp``, ``mlp.gate``, ``layers.3``, never ``mlp.ga``."""
        parts = self.name.split(".")
        size = len(parts)
        return [".".join(parts[start:end]) for start in range(size) for end in range(size, start, -1)]


_LAYER = re.compile(r"(?:layers|h|blocks)\\?\.\d+")
_NUMBER = re.compile(r"\.\d|\\d|[\[({|?]")


def tells_experts(table: Any) -> bool:
    """Whether any text of a table may mean some of the experts of a layer: one with a number that is not a layer's."""
    if isinstance(table, dict):
        return any(tells_experts(part) for entry in table.items() for part in entry)
    if isinstance(table, list):
        return any(tells_experts(entry) for entry in table)
    return isinstance(table, str) and not table[:1].isdigit() and bool(_NUMBER.search(_LAYER.sub("", table)))


Rule = Callable[[Module], str | None]


def without_root(pattern: str) -> str:
    """A pattern without the root of the model."""
    return _ROOT.sub("", pattern, count=1)


class _ByLayer:
    """Patterns sorted by the layer that they begin with; the others are tried for every layer."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self.layers: dict[int, list[tuple[str, str]]] = defaultdict(list)
        self.everywhere: list[tuple[str, str]] = []
        for pattern in patterns:
            short = without_root(pattern)
            place = _PLACE.match(short)
            (self.layers[int(place[1])] if place else self.everywhere).append((short, pattern))

    def of(self, module: Module) -> list[tuple[str, str]]:
        """The patterns that may mean it: without the root, and as written."""
        return self.everywhere + (self.layers.get(module.layer, []) if module.layer is not None else [])


def by_path(patterns: Iterable[str]) -> Rule:
    """A pattern means a module whose name has it as a run of whole parts: SGLang's ``_module_path_match``."""
    known = {without_root(pattern).strip("."): pattern for pattern in patterns}
    return lambda module: next((known[path] for path in module.paths if path in known), None)


def by_name(patterns: Iterable[str]) -> Rule:
    """A pattern means the module of that whole name: vLLM's ``is_layer_skipped`` (``fp8.py``, ``mxfp4.py``)."""
    known = {without_root(pattern): pattern for pattern in patterns}
    return lambda module: known.get(module.name)


def by_substring(patterns: Iterable[str]) -> Rule:
    """A pattern means every module whose name has it anywhere: vLLM's AWQ (``skip_with_substr``)."""
    sorted_ = _ByLayer(patterns)

    def rule(module: Module) -> str | None:
        return next((full for short, full in sorted_.of(module) if short in module.name or full in module.full), None)

    return rule


def by_component(patterns: Iterable[str]) -> Rule:
    """A pattern is one part of a name, or its beginning: vLLM's ``is_layer_skipped_bnb``."""
    known = {without_root(pattern): pattern for pattern in patterns}

    def rule(module: Module) -> str | None:
        parts = module.name.split(".")
        starts = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
        return next((known[name] for name in (*parts, *starts) if name in known), None)

    return rule


def by_wildcard(patterns: Iterable[str]) -> Rule:
    """A pattern with ``*`` means a whole name or a module around it; another one is a run of whole parts (ModelOpt)."""
    patterns = list(patterns)
    plain, stars = by_path(p for p in patterns if "*" not in p), _ByLayer(p for p in patterns if "*" in p)

    def rule(module: Module) -> str | None:
        for short, full in stars.of(module):
            if any(fnmatchcase(name, p) or fnmatchcase(name, f"{p}.*") for name, p in _both(module, short, full)):
                return full
        return plain(module)

    return rule


def by_glob(patterns: Iterable[str]) -> Rule:
    """A pattern is a shell pattern of the whole name, or an expression after ``re:`` (Quark)."""
    exact, stars = by_expression(patterns := list(patterns)), _ByLayer(p for p in patterns if not p.startswith("re:"))

    def rule(module: Module) -> str | None:
        for short, full in stars.of(module):
            if any(fnmatchcase(name, pattern) for name, pattern in _both(module, short, full)):
                return full
        return exact(module)

    return rule


def by_expression(patterns: Iterable[str]) -> Rule:
    """A pattern is a whole name, or an expression after ``re:`` that a name begins with (compressed-tensors)."""
    patterns = list(patterns)
    exact = by_name(p for p in patterns if not p.startswith("re:"))
    compiled = [(re.compile(p[3:]), p) for p in patterns if p.startswith("re:")]

    def rule(module: Module) -> str | None:
        found = exact(module)
        return found or next((full for expression, full in compiled if expression.match(module.full)), None)

    return rule


def by_beginning(patterns: Iterable[str]) -> Rule:
    """A pattern is an expression that a name begins with, without ``re:`` (GPTQ's ``dynamic``)."""
    compiled = [(re.compile(pattern), pattern) for pattern in patterns]
    return lambda module: next((full for expression, full in compiled if expression.match(module.full)), None)


def by_transformers(patterns: Iterable[str]) -> Rule:
    """transformers' ``should_convert_module``: an expression up to a part's end, from the start, or the name's end."""
    patterns = list(patterns)
    ends = r"(?:(?<=\.)|(?=\.|$))"
    compiled = [(re.compile(rf"(?:{_expression(p)}){ends}"), p) for p in patterns]

    def rule(module: Module) -> str | None:
        return next((p for e, p in compiled if e.match(module.full) or module.full.endswith(p)), None)

    return rule


def _expression(pattern: str) -> str:
    """The pattern where it is an expression, else itself letter by letter (``*`` alone is none)."""
    try:
        re.compile(pattern)
    except re.error:
        return re.escape(pattern)
    return pattern


def _both(module: Module, short: str, full: str) -> tuple[tuple[str, str], ...]:
    return ((module.name, short), (module.full, full))
