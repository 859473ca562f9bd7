"""What an accelerator can do, as its vendor states it: memory, dense peaks, links. SI inside."""

import re
from math import ceil, inf
from typing import Any, Literal, NamedTuple, Self

from inferplan.errors import MissingFactError, UsageError
from inferplan.spec import Field, Spec, model_validator
from inferplan.units import (
    Bytes,
    BytesPerSecond,
    FlopPerSecond,
    Hertz,
    Seconds,
    Watts,
    format_bytes,
    format_quantity,
    parse_quantity,
)
from inferplan.work.formats import WIDE

_MODULE = {"DDR4": 256.0, "DDR5": 512.0}
"""GB of the largest module (Samsung 2018-10-17 and 2021-03-25, in news.samsung.com); servers take two a channel."""


class Memory(Spec):
    """Device memory. ``usable`` is what the runtime reports to a program, not the label on the box."""

    label: str
    """The vendor's capacity, ``"80 GB"``; of a chip that is sold in sizes the largest, ``"up to 128 GB unified"``."""
    bandwidth: BytesPerSecond
    """Peak bandwidth of the datasheet [B/s]."""
    usable: Bytes | None = None
    """Bytes as reported by the runtime; absent where nobody has published a reading."""
    usable_basis: str = ""
    """Which tool reported ``usable``."""
    kind: str = ""
    """HBM3, GDDR6, ..."""
    wired: Literal["metal"] | None = None
    """Who limits what the GPU may use of memory that the processor shares (``configs/wired.yaml``)."""

    @property
    def dimms(self) -> bool:
        """Whether it is that of DIMMs: of a processor, not of an accelerator."""
        return self.kind.startswith("DDR")

    @property
    def labelled(self) -> float | None:
        """The figure of the label [GB]; ``None`` where it names none: the DIMMs of a socket are chosen by its owner."""
        found = re.search(r"(\d+(?:\.\d+)?) ?([GT])i?B\b", self.label)
        return None if found is None else float(found[1]) * (1000.0 if found[2] == "T" else 1.0)

    @property
    def most(self) -> float:
        """The most that a program can have [B]: the label read in GiB, as memory is made, or a larger reading on file;
        of sockets the largest modules in all slots; infinite where nothing names a figure."""
        labelled = self._slots[1] if self.labelled is None else self.labelled
        return max(labelled * 2.0**30, self.usable or 0.0)

    @property
    def _slots(self) -> tuple[str, float]:
        """Memory channels with the largest modules, in words, and what they hold [GB]."""
        found = re.fullmatch(r"(DDR\d)-\d+ x (\d+)ch", self.kind)
        if found is None or found[1] not in _MODULE:
            return "", inf
        module, channels = _MODULE[found[1]], int(found[2])
        return f"{channels} channels with two {found[1]} modules of {module:g} GB each", 2 * channels * module

    @property
    def most_in_words(self) -> tuple[str, str]:
        """Why :attr:`most` is so much, ``"it is sold with 80 GB, read as GiB (85.9 GB)"``, and itself, ``"80GiB"``."""
        if self.labelled is None:
            return f"the largest is {self._slots[0]}", f"{self.most / 2.0**40:.10g}TiB"
        read = self.labelled * 2.0**30
        if self.most > read:
            return f"it is sold with {self.label}, and {format_bytes(self.most)} are on file", f"{self.most:.0f}B"
        unit = "" if re.search(r"[GT]iB\b", self.label) else f", read as GiB ({format_bytes(read, 3)})"
        return f"it is sold with {self.label}{unit}", f"{self.labelled:.10g}GiB"


class Link(Spec):
    """A network between devices: one level of the topology, or one size of it.

    Entries of the same name are one fabric whose bandwidth grows with the group (a mesh, a torus), not nested levels.
    """

    name: str
    bandwidth: BytesPerSecond
    """Per device and direction [B/s], with every device sending."""
    domain: int | None = Field(default=None, ge=1)
    """How many devices it joins; absent means any number."""
    switch_reduces: bool = False
    """The switch adds in the network (NVLink SHARP), so an all-reduce sends each byte once instead of twice."""
    rails: int | None = Field(default=None, ge=1)
    """Ports through which a domain of the next smaller fabric leaves it; absent: one for each device."""
    latency: Seconds = 0.0
    """Seconds before the first byte arrives; zero where nobody has published it."""
    note: str = ""


class Level(NamedTuple):
    """What a group of ranks uses of one fabric.

    size: how many parts of the level below (on the innermost: ranks) share a domain of this one, on average.
    bandwidth: bytes a second that each rank of the group can send over it while all do.
    """

    link: Link
    size: float
    bandwidth: float


class Derivation(Spec):
    """A datasheet figure multiplied out of the chip's parts; a test checks the product."""

    factors: list[str]
    """Numbers with units, multiplied: ``["132", "4096 FLOP", "1.83 GHz"]``."""
    note: str = ""


class Slice(Spec):
    """A device that is a part of another one: an instance of NVIDIA Multi-Instance GPU (docs/mig.md)."""

    of: str
    """The whole device, by name."""
    profile: str
    instances: int = Field(ge=1)
    """How many of these one device holds."""
    units: int
    """Multiprocessors of all of them, of ``whole_units`` that the device has."""
    whole_units: int
    memory_eighths: int
    """Memory slices of all of them, of 8."""

    @property
    def stranded(self) -> str:
        """What of the device no instance has: ``"12 of 132 multiprocessors and 0 of 8 memory slices"``."""
        units, eighths = self.whole_units - self.units, 8 - self.memory_eighths
        return f"{units} of {self.whole_units} multiprocessors and {eighths} of 8 memory slices"


Segment = Literal["datacenter", "workstation", "consumer", "embedded"]
"""What a device is sold for. ``plan`` searches those for data centres unless devices are named."""
_SOCKETS = 2
"""Processors of a host: EPYC goes in boards of one or two, and no host of four or eight Xeons is on file."""


class HardwareSpec(Spec):
    """One accelerator, one YAML in ``configs/hardware``. Peaks are dense; an absent fact is refused, not guessed."""

    name: str
    vendor: str
    product: str
    aliases: list[str] = []
    form_factor: str = ""
    segment: Segment | None = None
    """What it is sold for; absent where a file of one's own does not say."""
    unit: str = "per GPU"
    """What one device is: a GPU, a chip, a GCD, a socket."""
    node: int | None = Field(default=None, ge=1)
    """Devices that one operating system sees; absent where sites differ, as with cards in PCIe slots."""
    year: int | None = None
    preliminary: bool = False
    """The figures are announced ones; its name says so wherever it is printed, and no error of its prices is known."""
    relative: str | None = None
    """The nearest device that was measured, by name: its kernels stand for this one's where nobody measured those."""
    same_chip: bool = False
    """Whether ``relative`` has the same chip: units and clock within 5 %, no lower a power limit, any memory."""
    source: str
    confidence: Literal["high", "medium", "low"]
    measured: bool = False
    """Bandwidth and peaks are what programs reached, no data sheet's: the device can do at least that."""
    notes: list[str] = []
    memory: Memory
    peak: dict[str, FlopPerSecond]
    """Dense FLOP/s (or OP/s) by arithmetic: fp32, tf32, fp16, bf16, fp8, int8, fp4, int4."""
    four_bits: str = "mxfp4"
    """The format of weights that ``fp4`` arithmetic multiplies, where several are known: that of its maker."""
    links: list[Link] = []
    """From the fastest and smallest domain to the widest."""
    bridge: Link | None = None
    """An NVLink bridge that joins cards directly where one is fitted: it is sold apart, so it is no part of ``links``
    until it is asked for (:attr:`bridged`)."""
    host_link: Link | str | None = None
    """The way to the host's memory, or the name of the one of ``links`` that is it too; absent where nobody says."""
    units: int | None = None
    """Streaming multiprocessors, compute units or cores."""
    thread_blocks: bool = True
    """Whether kernels are cut into thread blocks that its units take; the few cores of a TPU run a kernel whole."""
    clock: Hertz | None = None
    sockets: int = Field(default=1, ge=1)
    """Processors of one host, whose memory, cores and peaks are given together (:meth:`joined`)."""
    cache: Bytes | None = None
    """Last-level cache."""
    power: Watts | None = None
    """TDP of one device."""
    derivation: dict[str, Derivation] = {}
    part: Slice | None = None
    """What it is a part of; absent for a whole device."""

    @model_validator(mode="after")
    def _same_as_what(self) -> Self:
        if self.same_chip and self.relative is None:
            raise ValueError("same_chip: of which device? relative is missing")
        return self

    @model_validator(mode="after")
    def _known_host_link(self) -> Self:
        if isinstance(self.host_link, str) and self.host_link not in [link.name for link in self.links]:
            raise ValueError(f"host_link: none of the links is named {self.host_link!r}")
        return self

    @property
    def bridged(self) -> Self:
        """The device with its NVLink bridge fitted. Raises ``MissingFactError`` where none is on file."""
        if self.bridge is None:
            raise MissingFactError(
                f"no NVLink bridge for {self.name} is on file",
                because=f"{self.name} is joined by {', then '.join(link.name for link in self.links) or 'nothing'}",
                hint="leave --nvlink-bridge out",
            )
        return self.model_copy(update={"links": [self.bridge, *self.links]})

    @property
    def in_slots(self) -> bool:
        """Whether cards reach each other over PCIe, all or those that no bridge joins."""
        return any(link.name.startswith("PCIe") for link in self.links)

    def bridge_line(self, group: int) -> str:
        """Whether a group of so many devices is priced with the bridge that it could have; empty where it has none."""
        if self.bridge is None:
            return ""
        used = 1 < group <= (self.bridge.domain or group)
        rate = f"{format_quantity(self.bridge.bandwidth, 'B/s')}, {self.bridge.domain} cards"
        if self.bridge in self.links:
            idle = "" if used else f"; {group} in a group do not use them"
            return f"network: with NVLink bridges ({rate}), which are sold apart{idle}"
        if not used:
            return ""
        return f"network: {self.link(group).name}; with NVLink bridges, which are sold apart ({rate}): --nvlink-bridge"

    def joins_nodes(self, ranks: int) -> bool:
        """Whether the fabric of a node joins so many devices of several nodes."""
        link, node = self.link(ranks), self.node or ranks
        return link.name == self.links[0].name and link.domain is not None and link.domain > node

    @property
    def to_host(self) -> Link:
        """The link to the host's memory. Raises ``MissingFactError`` where none is on file."""
        if isinstance(self.host_link, Link):
            return self.host_link
        if self.host_link is None:
            raise MissingFactError(
                f"how {self.name} reaches the memory of its host is not on file",
                because="host_link of its hardware YAML is absent",
                hint="give its bandwidth in one direction: --host-link 63GB/s (PCIe 5.0 x16)",
            )
        return next(link for link in self.links if link.name == self.host_link)

    def peak_of(self, math: str) -> float:
        """Dense FLOP/s in that arithmetic. Raises ``MissingFactError`` when the device has none on file."""
        if math not in self.peak:
            raise MissingFactError(
                f"{self.name} has no {math} arithmetic on file",
                because=f"dense peaks known: {', '.join(self.peak) or 'none'}; not supported, or not published",
                hint=self._instead_of(math),
            )
        return self.peak[math]

    def _instead_of(self, math: str) -> str:
        """What to ask for where ``math`` is missing: a base format that is there, or wide inputs of narrow weights."""
        wide = next((name for name in ("bf16", "fp16", "fp32") if name in self.peak), None)
        if wide is None:
            return "another GPU, or its peaks in a copy of the hardware YAML"
        if math in WIDE:
            return f"--quant {wide}, its {math} peak in a copy of the hardware YAML, or another GPU"
        return f"keep the activations wide (--activations {wide}), choose another --quant, or another GPU"

    def joined(self, sockets: int) -> Self:
        """A host of so many such processors, ``2x-NAME``: memory channels, cores, caches, peaks and watts together.

        Raises ``UsageError`` for more than two, and for processors of which a board takes one.
        """
        alone = self.segment not in (None, "datacenter")
        if alone or sockets > _SOCKETS:
            raise UsageError(
                f"no host of {sockets} x {self.name} is known",
                because=f"boards of {self.segment} processors have one socket" if alone else "two sockets are the most",
                hint=self.name if alone else f"{_SOCKETS}x-{self.name}",
            )
        kind = re.sub(r"(?<= x )\d+(?=ch$)", lambda found: str(sockets * int(found[0])), self.memory.kind)
        memory = self.memory.model_copy(update={"bandwidth": sockets * self.memory.bandwidth, "kind": kind})
        update: dict[str, Any] = {"name": f"{sockets}x-{self.name}", "sockets": sockets, "memory": memory}
        update["peak"] = {math: sockets * rate for math, rate in self.peak.items()}
        for name in ("units", "cache", "power"):
            own = getattr(self, name)
            update[name] = None if own is None else sockets * own
        return self.model_copy(update=update)

    @property
    def core_cycles(self) -> float | None:
        """Cycles a second of all cores of a processor at their base clock, as the derivation of its peak states them;
        ``None`` where it does not, or where cores differ."""
        cores, *factors = self.derivation["bf16"].factors if "bf16" in self.derivation else [""]
        clock = next((parse_quantity(one, "hertz") for one in factors if one.endswith("Hz")), None)
        if clock is None or self.units is None or cores != str(self.units // self.sockets):
            return None
        return self.units * clock

    @property
    def size_lines(self) -> list[str]:
        """That a device is sold with less memory too, unless the user has said with how much."""
        option, _, read = self.memory.usable_basis.partition(": ")
        if option == "--memory" or self.memory.usable is None:
            return [f"note: {read}"] if read else []
        taken = f"here {format_bytes(self.memory.usable)} are usable"
        return [f"note: {note.rstrip('.')} ({taken})" for note in self.notes if "--memory" in note]

    @property
    def wired_line(self) -> str:
        """What of its memory the GPU may use, where that is less than was sold; empty for memory of its own."""
        memory = self.memory
        if memory.wired is None or memory.usable is None:
            return ""
        return (
            f"memory: the GPU of {self.name} may use {format_bytes(memory.usable)} of {memory.label} "
            f"({memory.usable_basis}); another size: memory.usable in a copy of the hardware YAML"
        )

    @property
    def uncertain(self) -> bool:
        """Whether a run that is faster than the peaks shows that these are too low: measured ones say what the device
        can do at the least, and those of low confidence may be another device's or an estimate."""
        return self.measured or self.confidence == "low"

    @property
    def multiprocessors(self) -> int | None:
        """The units that take thread blocks; ``None`` where their number is not on file or there are no blocks."""
        return self.units if self.thread_blocks else None

    def require_one_socket(self, devices: float) -> None:
        """Raise ``MissingFactError`` for a model on several processors."""
        if self.memory.dimms and devices > 1:
            raise _unjoined(self, int(devices))

    def ridge(self, math: str) -> float:
        """Arithmetic intensity [FLOP/B] above which that arithmetic, not the memory, is the limit."""
        return self.peak_of(math) / self.memory.bandwidth

    @property
    def usable(self) -> float:
        """Bytes a program can see. Raises ``MissingFactError`` when no reading is on file."""
        if self.memory.usable is None:
            raise MissingFactError(
                f"how much memory a program sees on {self.name} is not on file",
                because=f"the label says {self.memory.label}; {self.memory.usable_basis or 'no reading is published'}",
                hint=f"give it: --memory {_usual_dimms(self)}",
            )
        return self.memory.usable

    @property
    def tdp(self) -> float:
        """TDP of one device [W]. Raises ``MissingFactError`` when it is not on file."""
        if self.power is None:
            shared = self.part and f"--gpu {self.part.of}, whose instances share its power"
            hint = shared or "add power: to a copy of its YAML"
            raise MissingFactError(f"the power of {self.name} is not on file", hint=hint)
        return self.power

    def link(self, group: int) -> Link:
        """The narrowest link that joins ``group`` devices. Raises ``MissingFactError`` when none is on file."""
        for link in self.links:
            if link.domain is None or link.domain >= group:
                return link
        raise _unjoined(self, group)

    def levels(self, group: int, span: int) -> tuple[Level, ...]:
        """The fabrics that ``group`` ranks, evenly spaced over ``span`` devices, talk over; innermost first.

        One level where one fabric joins them all. Else the ranks that share its largest domain come first; a level
        whose domains hold one rank of the group each is left out. So is a bridge that does not join them all: a ring
        of cards is as fast as its slowest link. Raises ``MissingFactError`` as :meth:`link` does.
        """
        widest, stride = self.link(span), span / group
        found: list[Level] = []
        inside, joined = 1.0, 1  # ranks of the group, and devices, in a domain of the fabric below
        lasting = [] if widest == self.bridge else [link.name for link in self.links if link != self.bridge]
        for fabric in dict.fromkeys(lasting):
            if fabric == widest.name:
                break
            domain = max(link.domain or 1 for link in self.links if link.name == fabric)
            ranks = group / ceil(span / domain) if domain > stride else 1.0
            if ranks > inside:
                found.append(_level(self.link(domain), ranks / inside, inside, joined))
                inside = ranks
            joined = domain
        return (*found, _level(widest, group / inside, inside, joined))


def _usual_dimms(hardware: HardwareSpec) -> str:
    """A memory to name where a user has to: of a server's processor one of twelve channels."""
    return "384GB" if hardware.memory.dimms and hardware.segment == "datacenter" else "64GB"


def _unjoined(hardware: HardwareSpec, group: int) -> MissingFactError:
    """No link on file joins so many."""
    if hardware.memory.dimms:
        beside = f"; experts run on --host {_SOCKETS}x-{hardware.name} beside a GPU (docs/offload.md)"
        return MissingFactError(
            f"a model on {group} x {hardware.name} is not modelled",
            because="no link between sockets is on file, and published rates of two differ threefold"
            + (beside if hardware.segment == "datacenter" else ""),
            hint=f"one socket: --gpu {hardware.name} --memory {_usual_dimms(hardware)}",
        )
    return MissingFactError(
        f"no link on file joins {group} x {hardware.name}",
        because=", ".join(f"{link.name} joins {link.domain}" for link in hardware.links) or "no link is on file",
        hint="fewer devices in the group, or add the link to a copy of the hardware YAML (scale-out: no domain)",
    )


def _level(link: Link, size: float, ranks: float, devices: int) -> Level:
    """A level above domains of ``devices`` devices, of which ``ranks`` each send."""
    share = 1.0 if link.rails is None else devices / max(ranks, link.rails)
    return Level(link, size, link.bandwidth * share)
