"""How fast a loader reads weights from a network volume (``configs/loaders.yaml``)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from inferplan.catalog.files import config_root, spec_of
from inferplan.errors import UnknownNameError, UsageError
from inferplan.spec import Field, Spec
from inferplan.units import BytesPerSecond, Seconds


class LoaderSpec(Spec):
    """One loader. streams: as it reads by itself; ``None`` where the user sets it. start: before the first byte."""

    streams: int | None = Field(default=None, ge=1)
    start: Seconds = 0.0


class LoadersFile(Spec):
    """The file: one source, bytes a second of a stream, and each loader."""

    source: str
    stream: BytesPerSecond = Field(gt=0.0)
    loaders: dict[str, LoaderSpec]


@dataclass(frozen=True, kw_only=True)
class Loading:
    """A loader with its streams, of one process: ``start`` seconds, then ``bandwidth`` bytes a second at most."""

    name: str
    start: float
    bandwidth: float


@cache
def loaders() -> LoadersFile:
    """The loaders on file."""
    return spec_of(config_root() / "loaders.yaml", LoadersFile)


def loading_of(text: str) -> Loading:
    """``NAME`` or ``NAME:STREAMS`` as a loader. Raises ``UnknownNameError`` for a loader that is not on file,
    ``UsageError`` for streams that are missing, or no number above zero, or that a loader does not take."""
    name, colon, streams = text.partition(":")
    known = loaders()
    if name not in known.loaders:
        raise UnknownNameError(f"no loader {name!r} is on file", hint=f"--loader {', '.join(known.loaders)}")
    spec = known.loaders[name]
    if spec.streams is not None and colon:
        raise UsageError(f"--loader {name} has {spec.streams} stream", hint=f"--loader {name}")
    if spec.streams is None and not re.fullmatch(r"[1-9]\d{0,3}", streams, re.ASCII):
        raise UsageError(
            f"--loader {text!r} does not say with how many streams it reads",
            because="the rate of a network volume is that of its streams together",
            hint=f"--loader {name}:16",
        )
    count = spec.streams if spec.streams is not None else int(streams)
    return Loading(name=text, start=spec.start, bandwidth=count * known.stream)
