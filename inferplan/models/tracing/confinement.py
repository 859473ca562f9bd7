"""What holds the process in which the code of a checkpoint runs.

Linux holds most of it: namespaces without a network, with all files read-only but those of one folder, and in which no
process can be begun; Landlock for what may be read; limits of memory, CPU and files. A hook in Python refuses the same
but reading with a clearer error, and is all there is where the system gives nothing. The whole guards against
accidents, not against hostile code: system calls are not filtered, and sockets that are files are left to the hook.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_NEW_FILES, _NEW_MESSAGES, _NEW_USER, _NEW_PROCESSES, _NEW_NETWORK = (
    0x20000,
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
"""``CLONE_NEWNS``, ``NEWIPC``, ``NEWUSER``, ``NEWPID`` and ``NEWNET`` of ``linux/sched.h``."""
_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000
"""``MS_BIND``, ``MS_REC`` and ``MS_PRIVATE`` of ``linux/mount.h``."""
_MOUNT_SETATTR, _READ_ONLY, _HERE, _BELOW = 442, 1, -100, 0x8000
"""The system call, ``MOUNT_ATTR_RDONLY``, ``AT_FDCWD`` and ``AT_RECURSIVE``."""
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""System calls of Landlock (https://docs.kernel.org/userspace-api/landlock.html), numbers of every architecture."""
_READ, _READ_WRITE_FILE = 0b1100, 0b110
"""``READ_FILE`` and ``READ_DIR``; ``READ_FILE`` and ``WRITE_FILE``, of ``linux/landlock.h``."""
_SYSTEM = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/sys/devices/system/cpu")
"""What libraries read of a system, beside the processors and what is of the process itself."""
_SELF = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
_REFUSED = (
    *("socket.", "ftplib.", "smtplib.", "urllib."),
    *("subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.kill", "pty.", "resource."),
    *("ctypes.dlopen", "ctypes.dlsym"),
)
"""Audit events (https://docs.python.org/3/library/audit_events.html) that are refused whatever they name."""
_CHANGES = (
    *("os.chown", "os.chmod", "os.chflags", "os.utime", "os.setxattr", "os.removexattr", "os.truncate"),
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink"),
)
"""Those that change files, which have to lie in the folder of its own."""


def confine(own: Path, folder: Path, limits: dict[int, int]) -> str:
    """Take away what the code of a folder does not need, for good; what took it away, in words.

    own: what it may write in. limits: by their numbers in ``resource``.
    """
    held = _isolate(own) if sys.platform == "linux" else set()
    for limit, asked in (limits | {resource.RLIMIT_CORE: 0, resource.RLIMIT_NPROC: 0}).items():
        hard = resource.getrlimit(limit)[1]
        most = asked if hard == resource.RLIM_INFINITY else min(asked, hard)
        resource.setrlimit(limit, (most, most))
    _begins_a_process()  # the first of a namespace: none follows when it has ended
    if not _begins_a_process():
        held.add("other processes")
    if sys.platform == "linux" and _landlock(own, folder):
        held.add("reading files")
    import transformers.generation
    import transformers.modeling_utils  # noqa: F401 - these load libraries, which is refused from here on

    sys.addaudithook(_hook(own.resolve()))
    return _said(held)


def _said(held: set[str]) -> str:
    """In words, for a note of the model: what is held, and what hooks alone hold, which hostile code passes."""
    hooked = ["the network", "changing files", "other processes"]
    kernel = [what for what in [*hooked, "reading files"] if what in held]
    hooks = [what for what in hooked if what not in held]
    said = [f"the kernel kept it from {', '.join(kernel) or 'nothing'}"]
    if hooks:
        said.append(f"hooks in Python alone, no guard against hostile code, from {', '.join(hooks)}")
    if "reading files" not in held:
        said.append("it could read what you can read")
    return "; ".join(said)


def _isolate(own: Path) -> set[str]:
    """Enter namespaces of its own, and give up every capability in them: what they hold.

    No process begins in one of processes whose first has ended (``pid_namespaces(7)``).
    """
    system, held = ctypes.CDLL(None), set()
    apart = _NEW_NETWORK | _NEW_PROCESSES | _NEW_FILES | _NEW_MESSAGES
    # of users too, which hides /proc of others from root as well; without, where only root may make any
    if not system.unshare(apart | _NEW_USER) or not system.unshare(apart):
        held.add("the network")
        if _read_only(system, os.fsencode(own)):
            held.add("changing files")
        os.chdir(own)
    system.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())  # _LINUX_CAPABILITY_VERSION_3
    system.prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL: it ends with what asked
    return held


def _read_only(system: Any, own: bytes) -> bool:
    """Make every mount read-only but one of a folder; whether that went."""
    on, off = ((ctypes.c_uint64 * 4)(*one) for one in ((_READ_ONLY, 0), (0, _READ_ONLY)))
    size = ctypes.c_size_t(32)
    return not (
        system.mount(None, b"/", None, _RECURSIVE | _PRIVATE, None)
        or system.mount(own, own, None, _BIND, None)
        or system.syscall(_MOUNT_SETATTR, _HERE, b"/", _BELOW, on, size)
        or system.syscall(_MOUNT_SETATTR, _HERE, own, 0, off, size)
    )


def _begins_a_process() -> bool:
    """Whether a process can be begun; it ends at once."""
    try:
        begun = os.fork()
    except OSError:
        return False
    if not begun:
        os._exit(0)
    os.waitpid(begun, 0)
    return True


def _landlock(own: Path, folder: Path) -> bool:
    """Let files be read where Python, its packages, the system's libraries and the checkpoint are; whether it does."""
    system = ctypes.CDLL(None)
    known = system.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if known < 1:
        return False
    rights = 2 ** (min(12 + known, 15) + (known >= 5)) - 1  # every right on files that this version knows
    asked = [rights, *([3] if known >= 4 else []), *([3] if known >= 6 else [])]  # TCP; signals and abstract sockets
    rules = system.syscall(_CREATE_RULESET, (ctypes.c_uint64 * len(asked))(*asked), ctypes.c_size_t(8 * len(asked)), 0)
    may = dict.fromkeys([*_SYSTEM, *_SELF, *sys.path, sys.prefix, sys.base_prefix], _READ)
    may |= {str(folder): _READ}
    if folder.parent.name == "snapshots":  # of the hub's cache, whose files are links to those of a folder beside it
        may |= {str(folder.parents[1] / "blobs"): _READ}
    may |= {str(own): rights & ~1} | dict.fromkeys(_DEVICES, _READ_WRITE_FILE)  # 1: to execute, which nothing may be
    for place, right in may.items():
        if not place or not os.path.exists(place):
            continue
        most = rights if os.path.isdir(place) else _READ_WRITE_FILE
        opened = os.open(place, os.O_PATH | os.O_CLOEXEC)
        if system.syscall(_ADD_RULE, rules, 1, struct.pack("=Qi", right & most, opened), 0):
            return False
        os.close(opened)
    system.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS, which the next asks for
    return not system.syscall(_RESTRICT_SELF, rules, 0)


def _hook(own: Path) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook that refuses the network, other processes, libraries, and changes of files outside a folder."""
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
