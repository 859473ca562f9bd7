"""A request as the lines of Python that ask the same."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from inferplan.catalog.assemble import Request
from inferplan.estimate.load import StaticLoad
from inferplan.spec import Spec


def python_text(request: Request, load: StaticLoad) -> str | None:
    """Lines for ``import inferplan``; what is as usual is left out. ``None`` for a load that they do not take."""
    if not load.kv_cache or load.all_logits:
        return None
    imports, given = ["import inferplan"], [repr(request.model), repr(request.gpu)]
    usual = Request(model=request.model, gpu=request.gpu)
    for field in fields(Request):
        value = getattr(request, field.name)
        if field.name in ("model", "gpu") or not field.compare or value == getattr(usual, field.name):
            continue
        if field.name == "parallel":
            given += [f"{name}={one!r}" for name, one in _changed(value, usual.parallel)]
        elif field.name in ("flags", "media"):
            kind = type(value)
            imports.append(f"from {kind.__module__} import {kind.__name__}")
            inner = ", ".join(f"{name}={one!r}" for name, one in _changed(value, getattr(usual, field.name)))
            given.append(f"{field.name}={kind.__name__}({inner})")
        else:
            given.append(f"{field.name}={value!r}")
    lines = [*imports, "", f"deployment = inferplan.deploy({', '.join(given)})"]
    asked = f"batch={load.batch:.0f}, prompt={load.prompt - load.media_tokens:.0f}, output={load.output:.0f}"
    lines.append(f"found = inferplan.estimate_batch(deployment, {asked})")
    return "\n".join([*lines, "print(found.ttft, found.tpot, found.output_rate)"]) + "\n"


def _changed(value: Any, usual: Any) -> list[tuple[str, Any]]:
    names = type(value).spec_fields if isinstance(value, Spec) else [field.name for field in fields(value)]
    return [(name, getattr(value, name)) for name in names if getattr(value, name) != getattr(usual, name)]
