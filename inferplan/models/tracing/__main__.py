"""The process in which the code of a checkpoint runs: ``inferplan.models.tracing.apart`` starts it."""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

from inferplan.errors import InferplanError
from inferplan.models.tracing import trace_here
from inferplan.models.tracing.build import first_line
from inferplan.models.tracing.confinement import confine


def main() -> None:
    """The process: one question as JSON in its argument; to the descriptor that it names, two lines of JSON.

    The first says what holds it, and is written before the code is loaded, which could write it too. Then it answers.
    """
    asked = json.loads(sys.argv[1])
    path, shown = Path(asked["path"]), asked["shown"]
    limits = {
        resource.RLIMIT_AS: asked["memory"],
        resource.RLIMIT_CPU: asked["seconds"],
        resource.RLIMIT_FSIZE: asked["file"],
    }
    held = confine(Path(asked["own"]), path if path.is_dir() else path.parent, limits)
    with os.fdopen(asked["to"], "wb") as pipe:
        pipe.write(json.dumps(held).encode() + b"\n")
        pipe.flush()
        pipe.write(json.dumps(_answer(path, shown)).encode())


def _answer(path: Path, shown: str) -> dict[str, Any]:
    try:
        return {"model": trace_here(path, None, remote=True).to_dict()}
    except InferplanError as error:
        return {"error": [type(error).__name__, error.what, error.because, error.hint]}
    except Exception as error:
        return {"error": ["SpecError", f"{shown}: the code of the checkpoint fails", first_line(error), ""]}


if __name__ == "__main__":
    main()
