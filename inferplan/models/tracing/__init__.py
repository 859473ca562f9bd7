"""Any model that transformers can build, as a model file: ``inferplan import --trace`` (docs/tracing.md)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from inferplan.extras import require
from inferplan.models.checkpoint import named_by

if TYPE_CHECKING:
    from inferplan.models.spec import ModelSpec

__all__ = ["trace"]


def trace(path: Path, name: str | None = None) -> ModelSpec:
    """The model of a ``config.json``, or of a folder with one, from a run of its code on the meta device.

    Raises ``MissingExtraError`` without torch and transformers, ``InputFileError`` and ``SpecError`` for what is no
    config or nothing that transformers builds.
    """
    from inferplan.models.tracing.build import build, read_class, read_config, unread

    fields, file = read_config(path)
    require("models", "import --trace")
    from inferplan.models.tracing.model import assemble

    config, model_class = read_class(fields, file)
    found = assemble(build(config, model_class, file), config, name or named_by(path), str(file))
    odd = unread(fields, config)
    if not odd:
        return found
    note = f"traced: the class of the config does not name {', '.join(odd)}, which may be misspelt or read by nothing"
    return found.model_copy(update={"notes": [*found.notes, note]})
