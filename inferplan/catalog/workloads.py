"""Named workloads and limits, one YAML each in ``configs/workloads``: lengths, what prompts share, an SLO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, floor, log10
from typing import Any

from inferplan.catalog.files import load, names
from inferplan.catalog.limits import LengthsText
from inferplan.catalog.people import PeopleSpec
from inferplan.errors import UsageError
from inferplan.fields import option_values
from inferplan.models.media import MediaAsked
from inferplan.spec import Field, Spec
from inferplan.traffic.conversations import parse_think_time
from inferplan.traffic.requests import ArrivalKind, Lengths, SharedPrefix, Slo, arrivals_of, parse_lengths
from inferplan.units import Seconds, format_time

_MUCH_LONGER = 2.0
"""A limit on TTFT says little of prompts that are so many times as long as those that it was made for."""


class PrefixSpec(Spec):
    """What prompts have in common; see :class:`inferplan.traffic.requests.SharedPrefix`."""

    tokens: int = Field(default=0, ge=0)
    distinct: int = Field(default=1, ge=1)
    turns: int = Field(default=1, ge=1)
    think: str = "0 s"


class MediaSpec(Spec):
    """What requests carry beside text. ``images`` is written as lengths are: 1, uniform:4:0.25.

    Requests all have the same size of images, one video at most, one clip at most.
    """

    images: str | None = None
    image_size: tuple[int, int] | None = None
    video_frames: int = Field(default=0, ge=0)
    audio_seconds: float = Field(default=0.0, ge=0)

    def asked(self) -> tuple[MediaAsked, Lengths]:
        """One set of it, and how many sets requests have. Raises ``UsageError`` for images that vary beside others."""
        count = Lengths() if self.images is None else parse_lengths(self.images)
        fixed = count.kind == "fixed"
        if not fixed and (self.video_frames or self.audio_seconds):
            raise UsageError("a number of images that varies goes with no video and no sound", hint="images: 2")
        images = 0 if self.images is None else int(count.mean) if fixed else 1
        asked = MediaAsked(
            images=images,
            image_size=self.image_size,
            video_frames=self.video_frames,
            audio_seconds=self.audio_seconds,
            sets=1.0 if fixed else count.average,
        )
        return asked, Lengths() if fixed else count


class SloSpec(Spec):
    """Limits on latencies, and the percentile of requests that has to meet them."""

    ttft: Seconds | None = None
    tpot: Seconds | None = None
    e2el: Seconds | None = None
    percentile: float = Field(default=99.0, gt=0, le=100)

    def limits(self) -> Slo:
        return Slo(ttft=self.ttft, tpot=self.tpot, e2el=self.e2el, percentile=self.percentile)


class WorkloadSpec(Spec):
    """A workload. ``prompt`` and ``output`` are written as on the command line; absent where only limits are known."""

    name: str
    source: str
    notes: list[str] = []
    prompt: LengthsText | None = None
    output: LengthsText | None = None
    prefix: PrefixSpec = PrefixSpec()
    people: PeopleSpec | None = None
    samples: int = Field(default=1, ge=1)
    cached_share: float = Field(default=0.0, ge=0, lt=1)
    """Share of the prompt tokens that a prefix cache finds which forgets nothing, where it is not known how prompts
    share them."""
    burstiness: float = Field(default=1.0, gt=0)
    """Of arrivals in an open loop: ``1/v^2`` for gaps of coefficient of variation v; 1 is Poisson."""
    slo: SloSpec | None = None
    media: MediaSpec | None = None
    chat: bool = False
    """Requests are messages, which a checkpoint tuned on instructions takes by its chat template."""

    def shared_prefix(self) -> SharedPrefix:
        prefix = self.prefix
        think = parse_think_time(prefix.think)
        return SharedPrefix(tokens=prefix.tokens, distinct=prefix.distinct, turns=prefix.turns, think=think)

    def answer_time(self) -> float | None:
        """Seconds of a mean answer at the limits on TTFT and TPOT; ``None`` where it has none, or no lengths."""
        slo = self.slo
        if slo is None or slo.ttft is None or slo.tpot is None or self.output is None:
            return None
        return slo.ttft + (parse_lengths(self.output).average - 1) * slo.tpot

    def limits(self) -> Slo:
        """Its SLO; one without limits where it states none."""
        return Slo() if self.slo is None else self.slo.limits()


def shared_text(values: Mapping[str, Any], named: WorkloadSpec | None) -> SharedPrefix:
    """What prompts share: that of the workload, of which options replace a part each. Raises ``UsageError``."""
    prefix = replace(named.shared_prefix() if named else SharedPrefix(), **option_values(SharedPrefix, values))
    if values["distinct_prefixes"] and not prefix.tokens:
        raise UsageError("--distinct-prefixes is of texts that prompts begin with", hint="--shared-prefix 1000")
    return prefix


def asked_lengths(values: Mapping[str, Any], named: WorkloadSpec | None) -> tuple[str | None, str | None]:
    """Lengths of prompts and outputs as text: as options say, else those of the workload, if it has any."""
    usual = (None, None) if named is None else (named.prompt, named.output)
    return values["prompt"] or usual[0], values["output"] or usual[1]


def asked_arrivals(values: Mapping[str, Any], named: WorkloadSpec | None = None) -> tuple[ArrivalKind, float]:
    """Kind and burstiness of an open loop: as options say, else those of the workload."""
    return arrivals_of(values["arrivals"], values["burstiness"], named.burstiness if named else 1.0)


def asked_limits(values: Mapping[str, Any], named: WorkloadSpec | None, usual: Slo) -> Slo:
    """The limits of ``--slo``, else those of the workload if it has any, else ``usual``; options replace them."""
    base = usual if named is None or named.slo is None else named.limits()
    return replace(load_limits(values["slo"]) if values["slo"] else base, **option_values(Slo, values))


@dataclass(frozen=True, kw_only=True)
class BorrowedLimit:
    """A limit on TTFT that nobody stated: a workload's, for its own prompts of ``own`` tokens on average. prompt: those
    of the prompts it is held to, which are much longer."""

    workload: str
    ttft: float
    own: float
    prompt: float

    @property
    def scaled(self) -> float:
        """The limit in proportion to the prompts, of two digits."""
        limit = self.ttft * self.prompt / self.own
        place = 10.0 ** (floor(log10(limit)) - 1)
        return float(f"{ceil(limit / place - 1e-9) * place:.2g}")

    @property
    def option(self) -> str:
        """``"--ttft 3.9s"``."""
        return f"--ttft {self.scaled:g}s"

    def describe(self) -> str:
        """``"the TTFT limit of 500 ms is that of workload rag for its prompts of 4,096 tokens; these have 32,000"``."""
        return (
            f"the TTFT limit of {format_time(self.ttft, 3)} is that of workload {self.workload} for its prompts of "
            f"{self.own:,.0f} tokens; these have {self.prompt:,.0f}"
        )

    def choice(self) -> str:
        """That, and what to state."""
        return f"{self.describe()}; in proportion it is {self.option}; state --ttft to choose"


def borrowed_limit(values: Mapping[str, Any], named: WorkloadSpec | None) -> BorrowedLimit | None:
    """The limit on TTFT that a workload states for much shorter prompts than those asked for; ``None`` where somebody
    states one."""
    if named is None or named.slo is None or named.slo.ttft is None or named.prompt is None:
        return None
    if not values["prompt"] or values["ttft"] is not None or values["slo"]:
        return None
    own, asked = parse_lengths(named.prompt).average, parse_lengths(values["prompt"]).average
    if asked <= _MUCH_LONGER * own:
        return None
    return BorrowedLimit(workload=named.name, ttft=named.slo.ttft, own=own, prompt=asked)


def carried_media(asked: MediaAsked, named: WorkloadSpec | None, text: float | None) -> tuple[MediaAsked, Lengths]:
    """What requests carry beside text: what is asked for, or what the workload has, and how many sets of it.

    text: mean prompt tokens beside it; ``None`` for requests of a trace, to which nothing is added.
    """
    sets = Lengths()
    if not asked.any and named is not None and named.media is not None:
        asked, sets = named.media.asked()
    if not asked.any:
        return asked, sets
    if text is None:
        raise UsageError(
            "a trace says what its prompts are: no images are added to them",
            hint="--prompt and --output with --rate or --in-flight, or leave the media out",
        )
    return replace(asked, text=text), sets


def load_workload(name: str) -> WorkloadSpec:
    """A workload by name or path. Raises ``UnknownNameError`` with close matches."""
    return load("workloads", name, WorkloadSpec)


def load_limits(name: str) -> Slo:
    """The limits of a named workload; ``mlperf:NAME`` is that of ``mlperf-NAME``. Raises ``UsageError`` without any."""
    workload = load_workload(name.replace("mlperf:", "mlperf-", 1))
    if workload.slo is None:
        known = [other for other in names("workloads") if load_workload(other).slo is not None]
        raise UsageError(f"workload {workload.name} states no limits", hint=f"--slo {', '.join(known)}")
    return workload.limits()
