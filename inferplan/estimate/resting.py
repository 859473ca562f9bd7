"""What the price of each part of a deployment rests on, beside the kernels of the device, whose basis is their own.

measured: constants of measurements of that very part. published: public figures, whose rows docs/accuracy-parts.md has.
carried: constants of something else that was measured. formula: geometry and rates as they are told, nothing measured.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from inferplan.devices.constants import Calibration
from inferplan.devices.hardware import HardwareSpec


class Resting(TypedDict):
    """kind: of the four above. said: of what, for people."""

    kind: Literal["measured", "published", "carried", "formula"]
    said: str


LINK: Resting = {"kind": "formula", "said": "bytes over the link's rate as told, nothing overlapped"}
CAP: Resting = {"kind": "published", "said": "the law of voltage by capped runs of one RTX PRO 6000"}


def adapters_rest_on(unmeasured: bool, ideal: bool) -> Resting:
    """LoRA adapters. unmeasured: their kernels have no constants of their own."""
    if ideal:
        return {"kind": "formula", "said": "FLOP and bytes of the adapters, no launches"}
    if unmeasured:
        return {
            "kind": "carried",
            "said": "bytes and launches of the adapters' kernels, with a plain matmul's constants",
        }
    return {"kind": "measured", "said": "constants of the adapters' kernels"}


def instance_rests_on(whole: str, ideal: bool) -> Resting:
    """A MIG instance of a device."""
    shares = "shares of the whole device by the driver's lists"
    if ideal:
        return {"kind": "formula", "said": shares}
    return {"kind": "carried", "said": f"constants of the whole {whole}, {shares}"}


def host_rests_on(calibration: Calibration, hardware: HardwareSpec) -> Resting:
    """A host that computes layers: where nobody measured it, the share of its memory is published, the rest carried."""
    if calibration.basis == "roofline":
        return {"kind": "formula", "said": "FLOP and bytes at the host's peaks"}
    if calibration.name == hardware.name:
        return {"kind": "measured", "said": f"constants of {hardware.name}"}
    said = f"shares of DRAM's peak by tokens of other hosts; else constants {calibration.described}"
    return {"kind": "published", "said": said}
