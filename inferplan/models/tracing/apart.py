"""A trace of code that comes with a checkpoint (``auto_map``): in a process of its own, with as little as it needs.

What holds that process is :mod:`inferplan.models.tracing.confinement`; here it is started, waited for and ended, and
its answer is not believed further than a trace goes. It guards against accidents, not against hostile code.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from inferplan.errors import InferplanError, InputFileError, MissingExtraError, SpecError, UsageError
from inferplan.models.checkpoint import named_by
from inferplan.models.provenance import MadeFrom

if TYPE_CHECKING:
    from inferplan.models.spec import ModelSpec

MEMORY, FILE = 16 * 2**30, 64 * 2**20
"""Bytes of address space (torch alone maps some 5 GB), and of the longest file or answer."""
SECONDS, WAIT = 600, 1200
"""Seconds of CPU, and seconds until its answer has to be there."""
_KNOWN: dict[str, type[InferplanError]] = {
    error.__name__: error for error in (SpecError, InputFileError, MissingExtraError)
}
_PASSED = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
"""What it is told of the environment: no token, no home."""


def trace_apart(path: Path, name: str | None) -> ModelSpec:
    """The model of a folder whose code is run, as :func:`inferplan.models.tracing.trace` gives it.

    Raises ``SpecError`` for code that fails, or takes more than it is given, and ``UsageError`` on Windows.
    """
    if os.name != "posix":
        raise UsageError(
            "--trust-remote-code does not run on this system",
            because="nothing holds the code of a checkpoint there: limits and namespaces are of POSIX and Linux",
            hint="run it on Linux, or in WSL",
        )
    with tempfile.TemporaryDirectory(prefix="inferplan-", ignore_cleanup_errors=True) as own:
        said, ended = _ask(path, own)
    first, _, rest = said.partition(b"\n")
    try:
        held, answer = json.loads(first), json.loads(rest)
        if "error" in answer:
            kind, *parts = answer["error"]
            raise _KNOWN.get(kind, SpecError)(*map(str, parts))
        return _checked(answer["model"], path, name or named_by(path), held)
    except (ValidationError, ValueError, KeyError, TypeError, RecursionError):
        raise SpecError(
            f"{path}: the code of the checkpoint gave no model",
            because=f"its process {ended}: it may take {MEMORY / 2**30:.0f} GiB, {SECONDS} s of CPU, {WAIT} s in all",
        ) from None


def _checked(fields: object, path: Path, name: str, held: str) -> ModelSpec:
    """The model that a process answers, with nothing in it that a trace cannot know: its code may have written it.

    held: what the process said of itself before the code was loaded.
    """
    from inferplan.models.spec import ModelSpec

    model = ModelSpec.model_validate(fields)
    if model.basis != "traced":
        raise ValueError(f"basis {model.basis}")
    traced = f"transformers {version('transformers')}, the code of the checkpoint run on meta tensors"
    return model.model_copy(
        update={
            "name": name,
            "source": str(path),
            "made_from": MadeFrom(file=str(path), traced=traced),
            "notes": [*model.notes, f"traced: the code of the checkpoint was run, {held}"],
            "aliases": [],
            "licence": "",
            "published": None,
            "instruct_checkpoint": None,
        }
    )


def _ask(path: Path, own: str) -> tuple[bytes, str]:
    """What the process says until it ends or :data:`WAIT` is over, and how it ended. own: where it may write."""
    environment = {key: os.environ[key] for key in _PASSED if key in os.environ}
    environment |= {"HOME": own, "HF_HOME": own, "HF_MODULES_CACHE": f"{own}/modules", "TMPDIR": own, "USER": "nobody"}
    environment |= {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}
    # a process of several threads gets no namespace of users
    environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    packages = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, packages))
    reading, writing = os.pipe()
    asked = {"path": str(path.resolve()), "shown": str(path), "own": own, "to": writing}
    asked |= {"memory": MEMORY, "seconds": SECONDS, "file": FILE}
    until = time.monotonic() + WAIT
    with os.fdopen(reading, "rb", buffering=0):
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "inferplan.models.tracing", json.dumps(asked)],
                cwd=own,
                env=environment,
                pass_fds=[writing],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        finally:
            os.close(writing)
        try:
            said = _read(reading, until)
            return said, f"ended with {process.wait(timeout=max(0, until - time.monotonic()))}"
        except (TimeoutError, subprocess.TimeoutExpired):
            return b"", "did not end"
        finally:
            with suppress(ProcessLookupError, PermissionError):  # nothing of it is left
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _read(descriptor: int, until: float) -> bytes:
    """All that is written to a pipe, and nothing of more than :data:`FILE`. Raises ``TimeoutError``."""
    said = bytearray()
    with selectors.DefaultSelector() as ready:
        ready.register(descriptor, selectors.EVENT_READ)
        while len(said) <= FILE:
            if not ready.select(max(0, until - time.monotonic())):
                raise TimeoutError
            piece = os.read(descriptor, 2**16)
            if not piece:
                return bytes(said)
            said += piece
    return b""
