"""A trace of code that comes with a checkpoint (``auto_map``): in a process of its own, with as little as it needs.

It has no network, limited memory, time and file sizes, an environment without tokens, and a folder of its own for what
it writes. A namespace takes the network away where the system allows one, else a hook in Python; other processes and
changes of other files are refused by that hook alone, which compiled code does not meet.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from inferplan.errors import InferplanError, InputFileError, MissingExtraError, SpecError
from inferplan.models.checkpoint import named_by

if TYPE_CHECKING:
    from inferplan.models.spec import ModelSpec

MEMORY, SECONDS, FILE = 16 * 2**30, 600, 64 * 2**20
"""Bytes of address space (torch alone maps some 5 GB), seconds of CPU, and bytes of the longest file or answer."""
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
"""``CLONE_NEWUSER`` and ``CLONE_NEWNET`` of ``linux/sched.h``."""
_KNOWN: dict[str, type[InferplanError]] = {
    error.__name__: error for error in (SpecError, InputFileError, MissingExtraError)
}
_PASSED = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "SYSTEMROOT")
"""What it is told of the environment: no token, no home."""
_NETWORK = "socket."
_REFUSED = (
    _NETWORK,
    "subprocess.",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "os.kill",
    "pty.",
    "ftplib.",
    "smtplib.",
    "urllib.",
)
"""Audit events (https://docs.python.org/3/library/audit_events.html) that are refused whatever they name."""
_CHANGES = (
    "os.chown",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
)
"""Those that change files, which have to lie in the folder of its own."""


def trace_apart(path: Path, name: str | None) -> ModelSpec:
    """The model of a folder whose code is run, as :func:`inferplan.models.tracing.trace` gives it.

    Raises ``SpecError`` for code that fails, or takes more than it is given.
    """
    from inferplan.models.spec import ModelSpec

    with tempfile.TemporaryDirectory(prefix="inferplan-") as own:
        reading, writing = os.pipe()
        asked: dict[str, Any] = {
            "path": str(path.resolve()),
            "shown": str(path),
            "name": name or named_by(path),
            "own": own,
        }
        asked |= {"to": writing, "memory": MEMORY, "seconds": SECONDS}
        environment = {key: os.environ[key] for key in _PASSED if key in os.environ}
        environment |= {"HOME": own, "HF_HOME": own, "HF_MODULES_CACHE": f"{own}/modules", "TMPDIR": own}
        environment |= {
            "HF_HUB_OFFLINE": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        }
        environment |= {"OPENBLAS_NUM_THREADS": "1"}  # a process of several threads gets no namespace of users
        environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "inferplan.models.tracing", json.dumps(asked)],
            cwd=own,
            env=environment,
            pass_fds=[writing],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(writing)
        try:
            with os.fdopen(reading, "rb") as pipe:
                said = pipe.read(FILE)
            code = process.wait(timeout=2 * SECONDS)
        except subprocess.TimeoutExpired:  # it waits, and spends no CPU
            code = -signal.SIGKILL
        finally:
            process.kill()
            process.wait()
    try:
        answer = json.loads(said)
        if "error" in answer:
            kind, *parts = answer["error"]
            raise _KNOWN.get(kind, SpecError)(*map(str, parts))
        return ModelSpec.model_validate(answer["model"])
    except (ValidationError, ValueError, KeyError, TypeError):
        raise SpecError(
            f"{path}: the code of the checkpoint gave no model",
            because=f"its process ended with {code}: it may take {MEMORY / 2**30:.0f} GiB, and {SECONDS} s of CPU",
        ) from None


def confine(own: Path, memory: int, seconds: int) -> str:
    """Take away what the code does not need, for good; how the network went, in words."""
    how = "with sockets refused in Python: no network namespace is to be had here"
    if sys.platform == "linux":
        unshare = ctypes.CDLL(None).unshare
        if not unshare(_NEW_NETWORK) or not unshare(
            _NEW_USER | _NEW_NETWORK
        ):  # the second without a right to the first
            how = "in a network namespace without devices"
    limits = {resource.RLIMIT_AS: memory, resource.RLIMIT_CPU: seconds, resource.RLIMIT_FSIZE: FILE}
    for limit, asked in (limits | {resource.RLIMIT_CORE: 0}).items():
        hard = resource.getrlimit(limit)[1]
        most = asked if hard == resource.RLIM_INFINITY else min(asked, hard)
        resource.setrlimit(limit, (most, most))
    sys.addaudithook(_hook(own.resolve()))
    return how


def _hook(own: Path) -> Any:
    """An audit hook that refuses the network, other processes, and changes of files outside a folder."""
    inside = f"{own}{os.sep}"

    def refuse(event: str, args: tuple[Any, ...]) -> None:
        if event.startswith(_REFUSED):
            raise PermissionError(f"code of a checkpoint may not use {event}")
        writes = event == "open" and (args[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        if not writes and not event.startswith(_CHANGES):
            return
        for target in args[:1] if writes else args[:2]:
            if isinstance(target, (str, bytes, os.PathLike)):
                real = os.path.realpath(os.fsdecode(target))
                if not real.startswith(inside) and real not in (str(own), os.devnull):
                    raise PermissionError(f"code of a checkpoint may not change {real}")

    return refuse
