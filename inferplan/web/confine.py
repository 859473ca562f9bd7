"""What a process that answers may not do, whatever it is asked: Python's audit hooks see every call that would."""

from __future__ import annotations

import errno
import os
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from inferplan.catalog.files import config_root
from inferplan.catalog.price_lists import own_folder
from inferplan.files import READ
from inferplan.models.checkpoint import hub_cache

DENIED = frozenset(
    {
        *("socket.connect", "socket.getaddrinfo", "socket.sendto", "socket.bind"),
        *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty"),
        *("os.remove", "os.rename", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod", "shutil.rmtree"),
    }
)
"""Events of https://docs.python.org/3/library/audit_events.html: the network, other programs, changes to files."""
READ_FOR_USERS = frozenset({".yaml", ".yml", ".json", ".jsonl", ".csv", ".gguf", ".safetensors", ".txt"})
"""Suffixes of files that requests name, held to the folder however they are opened: beside :data:`READ`, which the
readers of inferplan say of every file, whatever its name."""


def confine(folder: Path) -> None:
    """From now on this process reaches no network and no program, changes no file, and reads for requests from the
    folder alone.

    Raised in place of the call is ``PermissionError``, which whoever called says as any file that cannot be read.
    """
    roots = _ending((folder, *_own_roots()))
    prices = own_folder()
    named = _ending((folder, config_root(), _PACKAGE, hub_cache(), *(() if prices is None else (prices,))))

    def deny(event: str, arguments: tuple[Any, ...]) -> None:
        if event in DENIED:
            raise PermissionError(errno.EPERM, f"{event} is not allowed in the server")
        if event == READ:
            _require_in(arguments[0], named)
        if event == "open" and isinstance(arguments[0], (str, bytes)):
            _check_file(os.fsdecode(arguments[0]), _changes(*arguments[1:3]), roots)

    sys.addaudithook(deny)


def _check_file(path: str, changed: bool, roots: tuple[str, ...]) -> None:
    if changed and path != os.devnull:
        raise PermissionError(errno.EPERM, "the server writes no file", path)
    if os.path.splitext(path)[1].lower() in READ_FOR_USERS:
        _require_in(path, roots)


def _require_in(path: str, roots: tuple[str, ...]) -> None:
    if not os.path.realpath(path).startswith(roots):
        raise PermissionError(errno.EACCES, "it is outside the folder of this server", path)
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):  # to open a pipe is to wait
        raise PermissionError(errno.EACCES, "it is no regular file", path)


def _ending(roots: Iterable[str | Path]) -> tuple[str, ...]:
    """Folders, links followed, as every path in them begins."""
    return tuple(os.path.join(os.path.realpath(root), "") for root in roots)


def _changes(mode: Any, flags: Any) -> bool:
    """Whether a file is opened to be changed."""
    if isinstance(mode, str):
        return bool(set(mode) & set("wax+"))
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def _own_roots() -> set[str]:
    """Where the program itself is, with its packages, and what they keep for the user: caches, fonts, downloads."""
    home = os.path.expanduser("~")
    kept = [os.path.join(home, name) for name in (".cache", ".config", ".matplotlib", "Library/Caches")]
    named = [*(os.environ.get(name, "") for name in _KEPT), str(own_folder() or "")]
    own = [sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), str(config_root()), str(_PACKAGE)]
    return {root for root in (*own, *kept, *named) if root}


_PACKAGE = Path(__file__).parents[1]
_KEPT = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HF_HOME", "HF_HUB_CACHE", "MPLCONFIGDIR")
"""Environment variables that name such places."""
