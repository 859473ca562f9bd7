"""Any model that transformers can build, as a model file (docs/tracing.md): ``inferplan import --trace``, and what the
tables of :mod:`inferplan.models.huggingface` do not describe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferplan.errors import SpecError
from inferplan.extras import require
from inferplan.models.checkpoint import named_by

if TYPE_CHECKING:
    from inferplan.models.spec import ModelSpec
    from inferplan.models.tracing.build import Asked

__all__ = ["TracedConfig", "trace", "trace_config"]


@dataclass(frozen=True, kw_only=True)
class TracedConfig:
    """What transformers made of a config. unnamed: fields that its class does not name, by their paths. own_class: the
    class that was built is one that the config names, if it names any."""

    model: ModelSpec
    unnamed: list[str]
    own_class: bool


def trace(path: Path, name: str | None = None, trust_remote_code: bool = False) -> ModelSpec:
    """The model of a ``config.json``, or of a folder with one, from a run of its code on the meta device.

    trust_remote_code: run the code that comes with the folder (``auto_map``) in place of that of transformers, in a
    process of its own (:mod:`inferplan.models.tracing.apart`). Raises ``MissingExtraError`` without torch and
    transformers, ``InputFileError`` and ``SpecError`` for what is no config or nothing that transformers builds,
    ``UsageError`` for a folder to trust that brings no code.
    """
    if not trust_remote_code:
        return trace_here(path, name)
    from inferplan.models.tracing.apart import trace_apart
    from inferplan.models.tracing.build import read_config, require_code

    fields, file = read_config(path)
    require_code(fields, file)
    require("models", "import --trace")
    return trace_apart(path, name)


def trace_here(path: Path, name: str | None, remote: bool = False) -> ModelSpec:
    """As :func:`trace`, in this process. remote: with the code of the folder, which this process is to be safe from."""
    from inferplan.models.tracing.build import read_config

    fields, file = read_config(path)
    require("models", "import --trace")
    name, source = name or named_by(path), str(file)
    if not remote:
        return trace_config(fields, name, source).model
    return _traced(fields, name, source, own_code=file).model


def trace_config(fields: dict[str, Any], name: str, source: str, timed: bool = True) -> TracedConfig:
    """The model of the fields of a config, in the formats of its quantisation.

    timed: with its operators; without them it takes one load, and has no time. Raises as :func:`trace` does; torch and
    transformers have to be installed.
    """
    from inferplan.models.tracing.build import require_type

    require_type(fields, source)
    return _traced(fields, name, source, timed)


def _traced(
    fields: dict[str, Any], name: str, source: str, timed: bool = True, own_code: Path | None = None
) -> TracedConfig:
    """What a class makes of its config, with notes of what it does not name. own_code: the file of the config in a
    folder whose code is run."""
    from inferplan.models.huggingface.quantisation import read_scheme
    from inferplan.models.tracing.build import Asked, read_class, read_own_class, unnamed, unquantised

    fields, table = unquantised(fields, source)
    scheme = None if table is None else read_scheme(table, name)
    found = read_class(fields, source) if own_code is None else read_own_class(fields, own_code)
    model = _assembled(found, Asked(name, source, timed, scheme), own_code is not None)
    (config, model_class), classes = found, fields.get("architectures") or []
    odd = unnamed(fields, config)
    own = not classes or model_class.__name__ in classes
    notes = list(model.notes)
    if odd:
        said = ", ".join(odd)
        notes.append(f"traced: the class of the config does not name {said}, which may be misspelt or read by nothing")
    if not own:
        notes.append(
            f"traced: transformers has no {', '.join(map(str, classes))}: its {model_class.__name__} was built"
        )
    return TracedConfig(model=model.model_copy(update={"notes": notes}), unnamed=odd, own_class=own)


def _assembled(found: tuple[Any, Any], asked: Asked, remote: bool) -> ModelSpec:
    """The traced model: from a run in bfloat16, or in float32 where its code mixes that with other widths.

    A state is refused there: how wide it is kept would be that of the run.
    """
    from inferplan.models.tracing.build import build
    from inferplan.models.tracing.model import assemble
    from inferplan.models.tracing.quantised import quantised

    def run(wide: bool) -> ModelSpec:
        built = build(*found, asked.source, wide=wide, meta_only=remote)
        model, traced = assemble(built, found[0], asked)
        return model if asked.scheme is None else quantised(model, asked.scheme, traced)

    try:
        return run(wide=False)
    except SpecError as error:
        if "scalar type" not in error.because:
            raise
        wide = run(wide=True)
        if wide.state_elements_per_sequence:
            raise
        return wide
