"""The raw file: JSON lines, one record a line, appended as they are measured, so that nothing measured is ever lost."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from inferplan.errors import InputFileError
from inferplan.work import ops
from inferplan.work.formats import FORMATS, Format
from inferplan.work.ops import Mask, Op

QUIET = 0.05
"""Share of a sample's time spent waiting for a core above which another program disturbed it."""


def encode(op: Op) -> dict[str, Any]:
    """An operator as JSON can hold it."""
    data: dict[str, Any] = {"type": type(op).__name__}
    for entry in fields(op):
        value = getattr(op, entry.name)
        if isinstance(value, Format):
            value = value.name
        elif isinstance(value, Mask):
            value = [value.kind, value.size]
        elif isinstance(value, (np.generic, np.ndarray)):
            value = float(value)
        data[entry.name] = value
    return data


def decode(data: dict[str, Any]) -> Op:
    """The operator that :func:`encode` wrote."""
    kind: type[Op] = getattr(ops, data["type"])
    values = {}
    for entry in fields(kind):
        if entry.name not in data:
            continue
        value = data[entry.name]
        if entry.type == "Format":
            value = FORMATS[value]
        elif entry.type == "Mask":
            value = Mask(kind=value[0], size=value[1])
        values[entry.name] = value
    return kind(**values)


def bare(op: Op) -> Op:
    """The operator as one run of one rank: without its place in a graph."""
    return replace(op, name=op.kernel, count=1.0, ranks=1, fusible=False)


def key_of(op: Op) -> str:
    """A short name of a shape: equal for equal work in equal formats, whatever the operator is called."""
    return hashlib.sha1(json.dumps(encode(bare(op)), sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One visit to one operator: the median of its laps.

    seconds: one run. spread: interquartile range over median. laps, calls: how many were timed, of how many runs each.
    host: seconds the host needs to issue one run (accelerators). waited: share of the time that a thread waited for a
    core (CPU). method: wall clock, device events or graph replay. kernel: the library call.
    """

    seconds: float
    spread: float = 0.0
    laps: int = 1
    calls: int = 1
    host: float | None = None
    waited: float = 0.0
    method: str = "wall"
    kernel: str = ""


@dataclass(frozen=True, kw_only=True)
class StepSample:
    """One step of a whole model: prefill or decode, launched eagerly or replayed from a graph."""

    model: str
    layers: int
    mode: str
    batch: int
    new: int
    past: int
    format: str
    seconds: float
    spread: float = 0.0
    laps: int = 1
    waited: float = 0.0

    @property
    def key(self) -> tuple[str, int, str, int, int, int, str]:
        return self.model, self.layers, self.mode, self.batch, self.new, self.past, self.format


@dataclass(eq=False)
class Session:
    """What a raw file holds, in memory."""

    provenance: list[dict[str, Any]] = field(default_factory=list)
    shapes: dict[str, Op] = field(default_factory=dict)
    samples: dict[str, list[Sample]] = field(default_factory=lambda: defaultdict(list))
    steps: dict[tuple[Any, ...], list[StepSample]] = field(default_factory=lambda: defaultdict(list))
    ceilings: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    finished: bool = False

    def take(self, record: dict[str, Any]) -> None:
        """Add one record. Records of unknown kinds are left alone, so that newer files can be read."""
        kind = record.get("record")
        if kind == "provenance":
            self.provenance.append(record)
            self.finished = False
        elif kind == "shape":
            self.shapes[record["key"]] = decode(record["op"])
        elif kind == "sample":
            self.samples[record["key"]].append(Sample(**record["sample"]))
        elif kind == "step":
            step = StepSample(**record["step"])
            self.steps[step.key].append(step)
        elif kind == "ceiling":
            name = record["name"]
            self.ceilings[name] = max(record["value"], self.ceilings.get(name, 0.0))
        elif kind == "refused":
            self.refused[record["what"]] = record["why"]
        elif kind == "failed":
            self.failed[record["key"]] = record["why"]
        elif kind == "finished":
            self.finished = True

    def seconds(self, key: str) -> float:
        """The median over the visits to a shape that no other program disturbed (the calmer half when all were)."""
        samples = self.samples[key]
        calm = [s.seconds for s in samples if s.waited <= QUIET]
        if len(calm) < min(2, len(samples)):
            calm = [s.seconds for s in sorted(samples, key=lambda s: s.waited)[: -(-len(samples) // 2)]]
        return float(np.median(calm))


class RawFile:
    """A session and the file that it is kept in. Every record is written and flushed at once."""

    def __init__(self, path: Path, session: Session, stream: TextIO) -> None:
        self.path, self.session, self._stream = path, session, stream

    @classmethod
    def open(cls, path: Path, resume: bool = False) -> RawFile:
        """Start a file, or go on with one. Raises ``InputFileError`` when an unfinished one would be lost."""
        session = Session()
        if path.is_file() and path.stat().st_size:
            if resume:
                session = read(path)
                _drop_cut_line(path)
            elif not read(path).finished:
                raise InputFileError(
                    f"{path} holds measurements of a run that did not end",
                    because=f"{sum(map(len, read(path).samples.values()))} samples would be lost",
                    hint="--resume goes on from it; or delete it; or give another --raw",
                )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stream = path.open("a" if resume else "w", encoding="utf-8")
        except OSError as error:
            raise InputFileError(f"cannot write {path}", because=error.strerror or str(error)) from None
        return cls(path, session, stream)

    def add(self, record: str, **values: Any) -> None:
        """Append one record, to the file and to the session."""
        line = {"record": record, **values}
        text = json.dumps(line)
        self._stream.write(text + "\n")
        self._stream.flush()
        self.session.take(json.loads(text))

    def add_shape(self, op: Op) -> str:
        """Note a shape once; its key."""
        key = key_of(op)
        if key not in self.session.shapes:
            self.add("shape", key=key, op=encode(bare(op)))
        return key

    def add_sample(self, key: str, sample: Sample) -> None:
        self.add("sample", key=key, sample=_short(asdict(sample)))

    def add_step(self, step: StepSample) -> None:
        self.add("step", step=_short(asdict(step)))

    def close(self) -> None:
        self._stream.close()


def _drop_cut_line(path: Path) -> None:
    """Take away a last line that a kill cut short, so that the next one begins on its own."""
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        path.write_bytes(content[: content.rfind(b"\n") + 1])


def _short(values: dict[str, Any]) -> dict[str, Any]:
    return {name: float(f"{v:.5g}") if isinstance(v, float) else v for name, v in values.items() if v is not None}


def read(path: Path) -> Session:
    """The session that a raw file holds; a last line cut short by a kill is dropped. Raises ``InputFileError``."""
    session = Session()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputFileError(f"cannot read {path}", because=error.strerror or str(error)) from None
    except UnicodeDecodeError:
        raise InputFileError(f"cannot read {path}", because="it is not UTF-8 text") from None
    for number, line in enumerate(lines, 1):
        try:
            session.take(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if number == len(lines):
                break
            raise InputFileError(f"{path}:{number}: not a record of a calibration", because=str(error)) from None
    return session
