"""What the price of each part rests on: the one table that ``explain``, JSON, error lines and the documentation read.

measured: constants of measurements of that very part. published: public figures, whose rows docs/accuracy-parts.md has.
carried: constants of something else that was measured. formula: geometry and rates as they are told, nothing measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypedDict

from inferplan.devices.constants import Calibration
from inferplan.devices.hardware import HardwareSpec

Kind = Literal["measured", "published", "carried", "formula"]


class Resting(TypedDict):
    """kind: of the four above. said: of what, for people. page: where its source stands. in_band: whether an error band
    covers it, where there is one."""

    kind: Kind
    said: str
    page: str
    in_band: bool


@dataclass(frozen=True, kw_only=True)
class PricedPart:
    """One part of a price. page: its source and how it is checked. said: by kind, what it rests on, with names to be
    put in. in_band: bands come from systems that had it, so that one without them is no band at all."""

    page: str
    said: Mapping[Kind, str]
    in_band: bool = True

    def on(self, kind: Kind, **names: str) -> Resting:
        """The part as it rests on ``kind``. Raises ``KeyError`` for a kind that it cannot rest on."""
        said = self.said[kind].format(**names)
        return {"kind": kind, "said": said, "page": self.page, "in_band": self.in_band}


PARTS: Mapping[str, PricedPart] = {
    "kernels": PricedPart(
        page="docs/calibration.md",
        said={
            "measured": "constants of kernels timed on {device}",
            "carried": "constants {constants}, carried from other devices, kernels or sizes",
            "formula": "FLOP and bytes at the datasheet's peaks",
        },
    ),
    "collectives": PricedPart(
        page="docs/operators/collective.md",
        said={
            "measured": "constants of collectives timed on {device}",
            "carried": "constants carried from other devices or patterns",
            "formula": "bytes over the links' rates as told",
        },
    ),
    "step": PricedPart(
        page="docs/serving.md",
        said={
            "published": "seconds of the engine's host by public serving rows, unless an option gives them",
            "formula": "no host is counted",
        },
    ),
    "routing": PricedPart(
        page="docs/formulas/moe.md",
        said={
            "measured": "popularity of this model's experts",
            "published": "usual popularity of experts, by public serving rows of other models",
            "formula": "popularity of experts as asked for, or the same of all",
        },
    ),
    "work": PricedPart(
        page="docs/formulas/roofline.md",
        said={"formula": "shapes of tensors and widths of their formats; the datasheet"},
    ),
    "memory": PricedPart(
        page="docs/formulas/memory.md",
        said={"published": "what the engine keeps beside weights and cache, by its source and public start-up logs"},
    ),
    "adapters": PricedPart(
        page="docs/accuracy-parts.md#lora",
        said={
            "measured": "constants of the adapters' kernels",
            "carried": "bytes and launches of the adapters' kernels, with a plain matmul's constants",
            "formula": "FLOP and bytes of the adapters, no launches",
        },
    ),
    "host": PricedPart(
        page="docs/accuracy-parts.md#weights-and-experts-on-the-host",
        said={
            "measured": "constants of {device}",
            "published": "shares of DRAM's peak by tokens of other hosts; else constants {constants}",
            "formula": "FLOP and bytes at the host's peaks",
        },
    ),
    "link": PricedPart(
        page="docs/offload.md",
        said={"formula": "bytes over the link's rate as told, nothing overlapped"},
    ),
    "mig": PricedPart(
        page="docs/accuracy-parts.md#mig",
        said={
            "carried": "constants of {device} as a whole, shares of it by the driver's lists",
            "formula": "shares of the whole device by the driver's lists",
        },
    ),
    "power_cap": PricedPart(
        page="docs/accuracy-parts.md#power-caps",
        said={"published": "the law of voltage by capped runs of one RTX PRO 6000"},
        in_band=False,
    ),
    "sampling": PricedPart(
        page="docs/accuracy-parts.md#top-k-and-top-p",
        said={
            "published": "public times of the kernels for top-k and top-p, of a few devices; bytes of penalties",
            "formula": "bytes of the logits, and of what penalties read with them",
        },
        in_band=False,
    ),
    "energy": PricedPart(
        page="docs/accuracy-parts.md#power-loaded-and-busy",
        said={"published": "shares of TDP by public watts of servers; without a step, those of one loaded H200"},
        in_band=False,
    ),
    "speculation": PricedPart(
        page="docs/accuracy-parts.md#speculation",
        said={
            "published": "acceptance by public runs, passes priced as any step",
            "formula": "acceptance as given, passes priced as any step",
        },
    ),
    "pools": PricedPart(
        page="docs/accuracy-parts.md#cache-tiers",
        said={
            "published": "share of the link's rate and latency of a transfer, by public transfers of one connector",
            "carried": "share of the link's rate and latency of a transfer, carried from another engine's connector",
            "formula": "bytes over the link's rate as told",
        },
    ),
    "cache_tiers": PricedPart(
        page="docs/accuracy-parts.md#cache-tiers",
        said={"formula": "latency, and bytes over the bandwidth, both as given"},
        in_band=False,
    ),
    "structured": PricedPart(
        page="docs/accuracy-parts.md#masks",
        said={
            "published": "the library's mean time of a mask without the slowest hundredth; when masks are filled is "
            "read from the engine's source",
            "formula": "--mask-time as given; when masks are filled is read from the engine's source",
        },
        in_band=False,
    ),
    "cold_start": PricedPart(
        page="docs/accuracy-parts.md#cold-start",
        said={
            "measured": "weights over the bandwidth as given, and a start-up log",
            "published": "weights as published loaders read them; the rest as given",
            "carried": "weights as a published loader read them in one process, times the processes; the rest as given",
            "formula": "weights over the bandwidth, and the rest, all as given",
        },
        in_band=False,
    ),
}
"""Each part, in the order in which reports show them. What is asked for decides which kind holds."""

KINDS: Mapping[str, Kind] = {
    "roofline": "formula",
    "calibrated": "measured",
    "transferred": "carried",
    "extrapolated": "carried",
}
"""The basis of the constants of a kernel, as a kind."""


def adapters_rest_on(unmeasured: bool, ideal: bool) -> Resting:
    """LoRA adapters. unmeasured: their kernels have no constants of their own."""
    return PARTS["adapters"].on("formula" if ideal else "carried" if unmeasured else "measured")


def host_rests_on(calibration: Calibration, hardware: HardwareSpec) -> Resting:
    """A host that computes layers: where nobody measured it, the share of its memory is published, the rest carried."""
    if calibration.basis == "roofline":
        return PARTS["host"].on("formula")
    own = calibration.name == hardware.name
    kind: Kind = "measured" if own else "published"
    return PARTS["host"].on(kind, device=hardware.name, constants=calibration.described)


def kernels_rest_on(calibration: Calibration, hardware: HardwareSpec) -> Resting:
    """The device's own kernels, most of them: an estimate has the shares of time (``basis_shares``)."""
    return PARTS["kernels"].on(KINDS[calibration.basis], device=hardware.name, constants=calibration.described)


def collectives_rest_on(calibration: Calibration, hardware: HardwareSpec) -> Resting:
    """Its collectives: they count as measured where no constant of one is carried."""
    fits = [
        fit
        for kernel, found in calibration.constants.items()
        if kernel.startswith("collective.")
        for fit in found.values()
    ]
    if not fits:
        return PARTS["collectives"].on("formula")
    carried = calibration.basis == "transferred" or any(fit.basis != "calibrated" for fit in fits)
    return PARTS["collectives"].on("carried" if carried else "measured", device=hardware.name)


def outside_band(parts: Mapping[str, Resting]) -> str:
    """The parts that no error band covers, in one line; empty for none."""
    found = [
        f"{name.replace('_', ' ')}, {one['kind']} ({one['said']})" for name, one in parts.items() if not one["in_band"]
    ]
    return f"outside every error band: {'; '.join(found)}" if found else ""
