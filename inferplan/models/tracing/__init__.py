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

__all__ = ["TracedConfig", "trace", "trace_config"]


@dataclass(frozen=True, kw_only=True)
class TracedConfig:
    """What transformers made of a config. unnamed: fields that its class does not name, by their paths. own_class: the
    class that was built is one that the config names, if it names any."""

    model: ModelSpec
    unnamed: list[str]
    own_class: bool


def trace(path: Path, name: str | None = None) -> ModelSpec:
    """The model of a ``config.json``, or of a folder with one, from a run of its code on the meta device.

    Raises ``MissingExtraError`` without torch and transformers, ``InputFileError`` and ``SpecError`` for what is no
    config or nothing that transformers builds.
    """
    from inferplan.models.tracing.build import read_config

    fields, file = read_config(path)
    require("models", "import --trace")
    return trace_config(fields, name or named_by(path), str(file)).model


def trace_config(fields: dict[str, Any], name: str, source: str, timed: bool = True) -> TracedConfig:
    """The model of the fields of a config. timed: with its operators; without them it takes one load, and has no time.

    Raises as :func:`trace` does; torch and transformers have to be installed.
    """
    from inferplan.models.tracing.build import read_class, require_traceable, unnamed

    require_traceable(fields, source)
    config, model_class = read_class(fields, source)
    model = _assembled(config, model_class, name, source, timed)
    odd, classes = unnamed(fields, config), fields.get("architectures") or []
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


def _assembled(config: Any, model_class: Any, name: str, source: str, timed: bool) -> ModelSpec:
    """The traced model: from a run in bfloat16, or in float32 where its code mixes that with other widths.

    A state is refused there: how wide it is kept would be that of the run.
    """
    from inferplan.models.tracing.build import build
    from inferplan.models.tracing.model import assemble

    try:
        return assemble(build(config, model_class, source), config, name, source, timed)
    except SpecError as error:
        if "scalar type" not in error.because:
            raise
        found = assemble(build(config, model_class, source, wide=True), config, name, source, timed)
        if found.state_elements_per_sequence:
            raise
        return found
