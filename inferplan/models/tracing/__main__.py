"""The process in which the code of a checkpoint runs: ``inferplan.models.tracing.apart`` starts it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from inferplan.errors import InferplanError
from inferplan.models.tracing import trace_here
from inferplan.models.tracing.apart import confine


def main() -> None:
    """The process: one question as JSON in its argument, one answer to the descriptor that it names."""
    asked = json.loads(sys.argv[1])
    how = confine(Path(asked["own"]), asked["memory"], asked["seconds"])
    try:
        model = trace_here(Path(asked["path"]), asked["name"], remote=True)
        note = f"traced: the code of the checkpoint was run, {how}"
        model = model.model_copy(update={"source": asked["shown"], "notes": [*model.notes, note]})
        answer: dict[str, Any] = {"model": model.to_dict()}
    except InferplanError as error:
        answer = {"error": [type(error).__name__, error.what, error.because, error.hint]}
    except Exception as error:
        first = str(error).strip().splitlines()[:1]
        because = f"{type(error).__name__}: {first[0][:200] if first else ''}"
        answer = {"error": ["SpecError", f"{asked['shown']}: the code of the checkpoint fails", because, ""]}
    with os.fdopen(asked["to"], "wb") as pipe:
        pipe.write(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
