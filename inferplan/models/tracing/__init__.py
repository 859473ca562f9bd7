"""Any model that transformers can build, as a model file: ``inferplan import --trace`` (docs/tracing.md)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from inferplan.extras import require
from inferplan.models.checkpoint import named_by

if TYPE_CHECKING:
    from inferplan.models.spec import ModelSpec

__all__ = ["trace"]


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
    from inferplan.models.tracing.build import build, read_class, read_config, read_own_class, unread

    fields, file = read_config(path)
    require("models", "import --trace")
    from inferplan.models.tracing.model import assemble

    config, model_class = read_own_class(fields, file) if remote else read_class(fields, file)
    model = build(config, model_class, file, meta_only=remote)
    found = assemble(model, config, name or named_by(path), str(file))
    odd = unread(fields, config)
    if not odd:
        return found
    note = f"traced: the class of the config does not name {', '.join(odd)}, which may be misspelt or read by nothing"
    return found.model_copy(update={"notes": [*found.notes, note]})
