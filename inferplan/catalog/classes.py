"""Files of traffic classes, YAML, by name in ``configs/classes`` or by path: see docs/classes.md."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from inferplan.catalog.files import find, spec_of
from inferplan.catalog.yaml_text import line_of
from inferplan.errors import SpecError, UsageError
from inferplan.spec import Spec
from inferplan.traffic.classes import require_whole
from inferplan.traffic.requests import Slo, TrafficClass, parse_lengths
from inferplan.units import Seconds


class ClassSpec(Spec):
    """One class. ``prompt`` and ``output`` are written as on the command line; either every class has a ``share`` of
    the requests or every one a ``rate``, requests a second; neither where a profile has the rates. ``chat``: its
    requests are messages."""

    name: str = Field(min_length=1, max_length=40)
    share: float | None = Field(default=None, gt=0, le=1)
    rate: float | None = Field(default=None, gt=0, le=1e6)
    prompt: str
    output: str
    ttft: Seconds | None = Field(default=None, gt=0)
    tpot: Seconds | None = Field(default=None, gt=0)
    e2e: Seconds | None = Field(default=None, gt=0)
    percentile: float = Field(default=95.0, gt=0, lt=100)
    priority: int = 0
    weight: float = Field(default=1.0, gt=0, le=1e6)
    chat: bool = False


class ClassesSpec(Spec):
    """A file of classes."""

    name: str = ""
    source: str = ""
    notes: list[str] = []
    classes: list[ClassSpec] = Field(min_length=1, max_length=32)


class Mix(NamedTuple):
    """The classes of a file, and the requests a second of all of them where the file says that."""

    classes: tuple[TrafficClass, ...]
    rate: float | None


def load_classes(name: str, rated: bool = False) -> Mix:
    """The classes of a name or a path; rated: their rates are said elsewhere, so that shares of the file do not count
    and may be missing, and all are the same here. Raises ``SpecError`` with file and line.
    """
    path = find("classes", name)
    spec = spec_of(path, ClassesSpec)
    total = None if rated else _total_rate(path, spec)
    made = []
    for place, one in enumerate(spec.classes):
        if rated and one.rate is not None:
            raise SpecError(_at(path, place, "a class has a rate, and so it has elsewhere"), hint="leave rate: out")
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
    return Mix(tuple(made), total)


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
    return f"{path}:{line_of(path, ('classes', place))}: {what}"
