"""Files of traffic classes, YAML, by name in ``configs/classes`` or by path: see docs/classes.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from inferplan.catalog.files import at_line, find, spec_of
from inferplan.catalog.limits import LengthsText, LimitsSpec
from inferplan.errors import SpecError, UsageError
from inferplan.fields import Text, ask, first_given
from inferplan.spec import Field, Spec
from inferplan.traffic.classes import require_whole
from inferplan.traffic.requests import Slo, TrafficClass, parse_lengths


class ClassSpec(LimitsSpec):
    """One class. ``prompt`` and ``output`` are written as on the command line; either every class has a ``share`` of
    the requests or every one a ``rate``, requests a second; neither where a profile has the rates. ``chat``: its
    requests are messages."""

    name: str = Field(min_length=1, max_length=40)
    share: float | None = Field(default=None, gt=0, le=1)
    rate: float | None = Field(default=None, gt=0, le=1e6)
    prompt: LengthsText
    output: LengthsText
    priority: int = 0
    weight: float = Field(default=1.0, gt=0, le=1e6)
    chat: bool = False


class ClassesSpec(Spec):
    """A file of classes."""

    name: str = ""
    source: str = ""
    notes: list[str] = []
    classes: list[ClassSpec] = Field(min_length=1, max_length=32)


class ClassMix(NamedTuple):
    """The classes of a file, and the requests a second of all of them where the file says that."""

    classes: tuple[TrafficClass, ...]
    rate: float | None


@dataclass(frozen=True, kw_only=True)
class ClassesAsked:
    """Classes as they are asked for, by name or path."""

    classes: str | None = ask(
        "--classes",
        Text(),
        "Classes of traffic, by name or path: lengths, share, limits, priority and weight per class (docs/classes.md).",
        None,
        metavar="FILE",
    )


_SAID = (
    *("workload", "trace", "prompt", "output", "ttft", "tpot", "e2e", "slo", "percentile", "deadline"),
    *("answer_ttft", "sessions", "session_rate", "session_time", "session_count", "length_ratio_min"),
)
"""What classes say for themselves."""
_SHARED = ("shared_prefix", "distinct_prefixes", "turns", "samples", "cached_prefix", "cache_tier")
"""What requests of classes may share, where that is known."""


def asked_classes(values: Mapping[str, Any], rated: bool = False, alone: bool = True) -> ClassMix:
    """The classes that are asked for; none where ``--classes`` is not given. rated: their rates are said elsewhere.
    alone: nothing is known of what their requests share.

    Raises ``UsageError`` for options that the file speaks for, and for an order of the queue without classes.
    """
    if values["classes"] is None:
        if values["queue"] != "fcfs":
            raise UsageError(
                f"--queue {values['queue']} needs several classes of traffic", hint="--classes FILE, or leave it out"
            )
        return ClassMix((), None)
    if option := first_given(values, (*_SAID, *_SHARED) if alone else _SAID):
        raise UsageError(
            f"{option} and --classes exclude each other",
            because="each class has its own lengths and limits" + (", and its requests share nothing" * alone),
            hint="the file of the classes states it; leave one out",
        )
    mix = load_classes(values["classes"], rated)
    beside = next((name for name in ("rate", "concurrency", "users") if values.get(name) is not None), None)
    if mix.rate is not None and beside:
        raise UsageError(
            f"--{beside} {values[beside]:g} with classes that have their own rates",
            because=f"they make {mix.rate:g} requests per second",
            hint=f"share: instead of rate: in the file, or no --{beside}",
        )
    return mix


def load_classes(name: str, rated: bool = False) -> ClassMix:
    """The classes of a name or a path; rated: their rates are said elsewhere, so that shares of the file do not count
    and may be missing, and all are the same here. Raises ``SpecError`` with file and line.
    """
    path = find("classes", name)
    spec = spec_of(path, ClassesSpec)
    total = None if rated else _total_rate(path, spec)
    made = []
    for place, one in enumerate(spec.classes):
        if rated and one.rate is not None:
            raise SpecError(_at(path, place, "the rate of a class is stated twice"), hint="leave rate: out")
        share = 1 / len(spec.classes) if rated else one.share if total is None else (one.rate or 0.0) / total
        assert share is not None
        try:
            made.append(_class(one, share))
        except UsageError as error:
            raise SpecError(_at(path, place, error.what), because=error.because, hint=error.hint) from None
    try:
        require_whole(made)
    except UsageError as error:
        raise SpecError(f"{path}: {error.what}", because=error.because, hint=error.hint) from None
    return ClassMix(tuple(made), total)


def _class(one: ClassSpec, share: float) -> TrafficClass:
    return TrafficClass(
        name=one.name,
        share=share,
        prompt=parse_lengths(one.prompt),
        output=parse_lengths(one.output),
        slo=Slo(ttft=one.ttft, tpot=one.tpot, e2el=one.e2e, percentile=one.percentile),
        priority=one.priority,
        weight=one.weight,
        chat=one.chat,
    )


def _total_rate(path: Path, spec: ClassesSpec) -> float | None:
    """Requests a second of all classes; ``None`` where they have shares. Raises ``SpecError`` for both, or neither."""
    for place, one in enumerate(spec.classes):
        if (one.share is None) == (one.rate is None):
            raise SpecError(_at(path, place, "a class has a share of the requests or a rate"), hint="share: 0.7")
        if (one.rate is None) != (spec.classes[0].rate is None):
            raise SpecError(_at(path, place, "some classes have shares and some have rates"), hint="the same for all")
    rates = [one.rate for one in spec.classes if one.rate is not None]
    return sum(rates) if rates else None


def _at(path: Path, place: int, what: str) -> str:
    return f"{at_line(path, 'classes', place)}: {what}"
