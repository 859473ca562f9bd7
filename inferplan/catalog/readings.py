"""Two readings of a config: by the tables of :mod:`inferplan.models.huggingface`, and by transformers' own class of its
type, where the tables do not describe all of it (docs/tracing.md).

The second needs the extra ``models``; what it found is kept for the next process. Neither torch nor transformers is
imported where the tables describe a config, or where the second reading is on file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from inferplan.errors import InferplanError, SpecError, UndescribedError
from inferplan.extras import EXTRAS, installs
from inferplan.models.huggingface import Imported, import_config
from inferplan.models.provenance import ASSUMED
from inferplan.models.spec import ModelSpec
from inferplan.models.tracing import TracedConfig, trace_config
from inferplan.models.tracing.build import unquantised

_PREDICTION = re.compile("nextn|mtp")
_MOST_ROUNDS = 20
"""Tables of one config that may each have fields that are not described."""


Keep = Callable[[str, str, Callable[[], TracedConfig]], TracedConfig]
"""What keeps a result by its kind and the text it was made from: :func:`inferplan.catalog.file_cache.made_once`."""


def read_either(
    keep: Keep,
    config: dict[str, Any],
    name: str,
    source: str,
    quantization: dict[str, Any] | None,
    preprocessor: dict[str, Any] | None,
) -> Imported:
    """As :func:`inferplan.models.huggingface.import_config`, which is asked first.

    A type, or a value, that it does not describe is read by transformers alone: its basis is ``traced``. Fields of a
    known type that it does not describe are left out where both readings then count the same. Raises ``SpecError``
    where they differ, where neither reads it, and with the extra's name where transformers is not installed.
    """
    beside = quantization, preprocessor
    try:
        return import_config(config, name, source, *beside)
    except UndescribedError as error:
        refusal = error
    if not all(map(find_spec, EXTRAS["models"])):
        hint = f"have transformers read it by the class of its type: {installs('models')}"
        raise _like(refusal, hint=f"{hint}; or {refusal.hint}" if refusal.hint else hint)
    rest, fields = _without_undescribed(config, refusal, name, source)
    if not fields:
        quantised = config | {"quantization_config": config.get("quantization_config") or quantization}
        return Imported(model=_by_transformers(keep, refusal, quantised, name, source, timed=True).model, ignored=[])
    own = import_config(rest, name, source, *beside)
    other = _by_transformers(keep, refusal, unquantised(config, source)[0], name, source, timed=False)
    differ = list(_differences(own.model, other.model))
    said = ", ".join(fields)
    if differ:
        more = f" and {len(differ) - 1} more" if len(differ) > 1 else ""
        because = f"without {said} its table counts otherwise than {_installed()} does: {differ[0]}{more}"
        raise _like(refusal, because=because)
    by_none = [path for path in fields if any(f"{path}.".startswith(f"{name}.") for name in other.unnamed)]
    if by_none and (not other.own_class or any(map(_is_a_part, by_none, (_value(config, path) for path in by_none)))):
        raise _like(refusal, because=f"{_installed()} reads none of {', '.join(by_none)}: other code may")
    nowhere = f", whose class does not name {', '.join(by_none)}" if by_none else ""
    note = f"{ASSUMED}{said} changes no count: no table describes it, and {_installed()} counts the rest alike{nowhere}"
    return replace(own.noting([note]), ignored=sorted({*own.ignored, *fields}))


def _is_a_part(path: str, value: Any) -> bool:
    """Whether a field describes a part of its own: a table, or prediction modules, which no class builds."""
    return isinstance(value, dict) or bool(value and _PREDICTION.search(path))


def _like(refusal: UndescribedError, because: str = "", hint: str = "") -> UndescribedError:
    return type(refusal).of_fields(refusal.what, refusal.fields, because or refusal.because, hint or refusal.hint)


def _without_undescribed(
    config: dict[str, Any], refusal: UndescribedError, name: str, source: str
) -> tuple[dict[str, Any], list[str]]:
    """The config without the fields that the tables do not describe, and those; none where more is not described.

    refusal: what the tables say of the whole config.
    """
    rest = deepcopy(config)
    taken: list[str] = []
    for _ in range(_MOST_ROUNDS):
        if not refusal.fields or not all(_take_out(rest, path) for path in refusal.fields):
            return config, []
        taken += refusal.fields
        try:
            import_config(rest, name, source)
        except UndescribedError as error:
            refusal = error
        except SpecError:
            return config, []
        else:
            return rest, taken
    return config, []


def _table_of(config: dict[str, Any], path: str) -> dict[str, Any]:
    """The mapping that a field stands in; an empty one where there is none."""
    for key in path.split(".")[:-1]:
        inner = config.get(key)
        config = inner if isinstance(inner, dict) else {}
    return config


def _value(config: dict[str, Any], path: str) -> Any:
    return _table_of(config, path).get(path.rpartition(".")[2])


def _take_out(config: dict[str, Any], path: str) -> bool:
    """Whether a field was there to be taken out."""
    return _table_of(config, path).pop(path.rpartition(".")[2], None) is not None


def _by_transformers(
    keep: Keep, refusal: UndescribedError, config: dict[str, Any], name: str, source: str, timed: bool
) -> TracedConfig:
    """What transformers' own class makes of a config. Raises ``SpecError`` with both reasons where it makes none."""

    def make() -> TracedConfig:
        return trace_config(config, name, source, timed)

    text = json.dumps([name, source, timed, _installed(), _installed("torch"), config], sort_keys=True)
    try:
        return keep("traced", text, make)
    except InferplanError as error:
        own = f"{refusal.because}; " if refusal.because else ""
        told = f"{error.what.removeprefix(f'{source}: ')}{f' ({error.because})' if error.because else ''}"
        raise _like(refusal, because=f"{own}{_installed()}: {told}") from None


def _installed(package: str = "transformers") -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:  # a checkout on the path
        return package


def _differences(own: ModelSpec, other: ModelSpec) -> Iterator[str]:
    """Where two readings of a config count otherwise, in words."""
    ours, theirs = _counts(own), _counts(other)
    parts = dict.fromkeys([*ours, *theirs])
    if "active" not in ours.keys() & theirs.keys():  # a trace may not tell how many experts a token reads
        parts.pop("active", None)
    for part in parts:
        if ours.get(part, 0) != theirs.get(part, 0):
            yield f"{part} {ours.get(part, 0):,} for {theirs.get(part, 0):,}"


def _counts(model: ModelSpec) -> dict[str, float]:
    """Parameters by part, without prediction modules, which no class of transformers builds; what a token adds to the
    cache, and the state of a sequence."""
    sizes = model.parameters
    encoder = sum(count * one.elements for one, count in model.encoder.weights()) if model.encoder else 0
    layers = [
        0 if layer.shared else sum(one.elements for one in model.layer_weights(layer)) for layer in model.sequence
    ]
    around = sizes["total"] - sizes["embedding"] - sizes["lm_head"] - encoder - sum(layers)
    return {
        "embedding": sizes["embedding"],
        "head": sizes["lm_head"],
        **{f"layer {index}": size for index, size in enumerate(layers)},
        "around the layers": around,
        **({"active": sizes["active"]} if "active" in sizes else {}),
        "towers and encoder": model.tower_parameters + encoder,
        "cache elements per token": model.kv_elements_per_token,
        "those beyond windows": model.kv_elements_per_token_beyond_windows,
        "state elements": model.state_elements_per_sequence,
    }
