"""What the operating system says of its processors, caches and memory: Linux by its files, macOS by ``sysctl``."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

APPLE_CACHE = 96 << 20
"""Bytes of the largest system-level cache of an Apple chip (M1 Ultra: twice the 48 MB of the M1 Max). macOS tells no
program how much of it there is, so operands are made to exceed the largest."""
UNKNOWN_CACHE = 512 << 20
"""Bytes that exceed every last-level cache of an accelerator on the market (256 MB: Infinity Cache of CDNA 3)."""


def said(*command: str, seconds: float = 10.0) -> str:
    """What a command prints; nothing where there is no such command, or where it fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def processor_name() -> str:
    """The model of the CPU: ``/proc/cpuinfo`` on Linux, ``machdep.cpu.brand_string`` on macOS."""
    table = Path("/proc/cpuinfo")
    match = re.search(r"model name\s*:\s*(.+)", table.read_text()) if table.is_file() else None
    if match is None and platform.system() == "Darwin":
        return said("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()
    return " ".join((match[1] if match else platform.processor() or platform.machine()).split())


def apple_gpu_cores() -> int:
    """GPU cores of an Apple chip by the I/O registry; 0 where it does not say."""
    match = re.search(r'"gpu-core-count"\s*=\s*(\d+)', said("ioreg", "-rc", "AGXAccelerator", "-d1"))
    return int(match[1]) if match else 0


def _allowed() -> list[int]:
    """The processors that this process may run on (Linux); the first elsewhere."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]


def processor_cache(root: Path = Path("/sys/devices/system/cpu"), allowed: list[int] | None = None) -> float | None:
    """Bytes of last-level cache of all the cores that this process may run on; ``None`` where nothing says so.

    A chip of several dies has a cache on each: 12 of 32 MB on an EPYC 9654, which 96 threads use together.
    """
    found: dict[tuple[int, str], float] = {}
    for cpu in _allowed() if allowed is None else allowed:
        for index in (root / f"cpu{cpu}" / "cache").glob("index*"):
            try:
                level, shared = int((index / "level").read_text()), (index / "shared_cpu_list").read_text().strip()
                size = re.fullmatch(r"(\d+)([KM]?)", (index / "size").read_text().strip())
            except (OSError, ValueError):
                continue
            if size is not None:
                found[level, shared] = int(size[1]) * {"": 1, "K": 1 << 10, "M": 1 << 20}[size[2]]
    if found:
        last = max(level for level, _ in found)
        return float(sum(size for (level, _), size in found.items() if level == last))
    told = said("sysctl", "-n", "hw.l3cachesize") if platform.system() == "Darwin" else ""
    return float(told) if told.isdigit() and int(told) else None


def memory_size() -> float:
    """Bytes of memory of the machine."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def memory_available() -> float:
    """Bytes of memory that this process may still take: what Linux calls available, within the control group's limit.

    Elsewhere half of the machine's memory.
    """
    table = Path("/proc/meminfo")
    match = re.search(r"MemAvailable:\s*(\d+) kB", table.read_text()) if table.is_file() else None
    if match is None:
        return 0.5 * memory_size()
    return min(float(match[1]) * 1024, _group_available(Path("/sys/fs/cgroup")))


def _group_available(root: Path) -> float:
    """Bytes left under the limit of a container's control group (version 2, then 1); infinite without one."""
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            return max(0.0, float((root / limit).read_text()) - float((root / used).read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return float("inf")


def driver_version() -> str | None:
    """The version of the accelerator's kernel driver (NVIDIA or amdgpu); ``None`` where there is no such file."""
    nvidia, amd = Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version")
    if nvidia.is_file():
        match = re.search(r"Module(?: for \S+)?\s+(\d+[\d.]*)", nvidia.read_text())
        return match[1] if match else None
    return amd.read_text().strip() if amd.is_file() else None
