"""What each device of the stand-in says of itself, as torch's properties and names give it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One device: its catalogue entry, and what torch reports of it.

    kind: torch's device type. memory: total bytes. units: SMs, compute units or GPU cores. l2: ``L2_cache_size`` [B].
    capability: (major, minor). arch: ``gcnArchName`` (AMD). launch: seconds the host needs to launch one kernel.
    """

    catalogue: str
    kind: str
    product: str
    memory: int
    units: int
    l2: int = 0
    capability: tuple[int, int] = (0, 0)
    arch: str = ""
    launch: float = 4e-6


MIB = 1 << 20
CHIPS: dict[str, Chip] = {
    chip.catalogue: chip
    for chip in (
        Chip(
            catalogue="t4",
            kind="cuda",
            product="Tesla T4",
            memory=15828320256,
            units=40,
            l2=4 * MIB,
            capability=(7, 5),
        ),
        Chip(
            catalogue="v100-sxm2-32gb",
            kind="cuda",
            product="Tesla V100-SXM2-32GB",
            memory=34079899648,
            units=80,
            l2=6 * MIB,
            capability=(7, 0),
        ),
        Chip(
            catalogue="a100-80gb-sxm",
            kind="cuda",
            product="NVIDIA A100-SXM4-80GB",
            memory=84987740160,
            units=108,
            l2=40 * MIB,
            capability=(8, 0),
        ),
        Chip(
            catalogue="h100-sxm",
            kind="cuda",
            product="NVIDIA H100 80GB HBM3",
            memory=84929282048,
            units=132,
            l2=50 * MIB,
            capability=(9, 0),
        ),
        Chip(
            catalogue="h200-sxm",
            kind="cuda",
            product="NVIDIA H200",
            memory=150109945856,
            units=132,
            l2=60 * MIB,
            capability=(9, 0),
        ),
        Chip(
            catalogue="b200-hgx",
            kind="cuda",
            product="NVIDIA B200",
            memory=191502483456,
            units=148,
            l2=126 * MIB,
            capability=(10, 0),
        ),
        Chip(
            catalogue="mi300x",
            kind="cuda",
            product="AMD Instinct MI300X",
            memory=206141652992,
            units=304,
            l2=4 * MIB,
            capability=(9, 4),
            arch="gfx942:sramecc+:xnack-",
        ),
        Chip(
            catalogue="m3",
            kind="mps",
            product="Apple M3",
            memory=19069670000,
            units=10,
            launch=4e-5,
        ),
    )
}
"""By the name of the catalogue entry. ``mi300x`` is a HIP build of torch; ``m3`` is torch's MPS device."""
SEVEN = ("t4", "a100-80gb-sxm", "h100-sxm", "h200-sxm", "b200-hgx", "mi300x", "m3")
"""One device of each kind of branch that the calibrator has."""
