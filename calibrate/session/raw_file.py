"""The raw file: JSON lines, one record a line, appended as they are measured, so that nothing measured is ever lost."""

from __future__ import annotations

import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from calibrate.samples import Sample, StepSample, bare, decode, encode, key_of
from calibrate.session.records import record_of
from inferplan.errors import InputFileError
from inferplan.work.ops import Op

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None

SHAPE, MEMORY, DEVICE = "shape", "memory", "device"
"""Why something failed: its sizes, too little memory, a device that was lost meanwhile."""
_BEGIN = '{"record":'


@dataclass(eq=False)
class Session:
    """What a raw file holds, in memory.

    failed: why, by the key of a shape or a step (or the name of a kernel and format, or ``ceilings``); what is measured
    after all is taken from it. causes: how often each failed, by :data:`SHAPE`, :data:`MEMORY` and :data:`DEVICE`.
    done: the parts of a run that are complete. plan: how many shapes were asked for, with the budget and seed they
    followed from. passed_over: kernel libraries that could not be used, and why. spent: seconds of its budget that a
    run which did not finish has used, once its shapes were chosen.
    """

    provenance: list[dict[str, Any]] = field(default_factory=list)
    shapes: dict[str, Op] = field(default_factory=dict)
    samples: dict[str, list[Sample]] = field(default_factory=lambda: defaultdict(list))
    steps: dict[tuple[Any, ...], list[StepSample]] = field(default_factory=lambda: defaultdict(list))
    ceilings: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    causes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    done: set[str] = field(default_factory=set)
    plan: dict[str, Any] = field(default_factory=dict)
    passed_over: dict[str, str] = field(default_factory=dict)
    spent: float = 0.0
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
            self._clear(record["key"])
        elif kind == "step":
            step = StepSample(**record["step"])
            self.steps[step.key].append(step)
            self._clear(str(step.key))
        elif kind == "ceiling":
            name = record["name"]
            self.ceilings[name] = max(record["value"], self.ceilings.get(name, 0.0))
        elif kind in ("refused", "allowed"):
            self.refused.pop(record["what"], None)
            if kind == "refused":
                self.refused[record["what"]] = record["why"]
        elif kind == "failed":
            self.failed[record["key"]] = record["why"]
            self.causes[record["key"]][record.get("cause", SHAPE)] += 1
        elif kind == "done":
            self.done.add(record["what"])
            self._clear(record["what"])
        elif kind == "passed_over":
            self.passed_over[record["what"]] = record["why"]
        elif kind == "plan":
            self.plan = record
        elif kind == "finished":
            self.finished = True
        if self.finished or not self.plan:
            self.spent = 0.0
        else:
            self.spent = record.get("at", self.spent)

    def _clear(self, key: str) -> None:
        """It was measured: an earlier failure was not its own."""
        self.failed.pop(key, None)
        self.causes.pop(key, None)

    def seconds(self, key: str) -> float:
        """The median over the visits to a shape that nothing disturbed; of the calmer half when fewer than two are."""
        samples = self.samples[key]
        calm = [s.seconds for s in samples if s.calm]
        if len(calm) < min(2, len(samples)):
            ordered = sorted(samples, key=lambda s: (not s.calm, s.waited))
            calm = [s.seconds for s in ordered[: -(-len(samples) // 2)]]
        return float(np.median(calm))


class RawFile:
    """A session and the file that it is kept in. Every record is written and flushed at once.

    clock: seconds of the budget that are spent, noted with every record (``at``), if there is one.
    """

    def __init__(self, path: Path, session: Session, stream: TextIO) -> None:
        self.path, self.session, self._stream = path, session, stream
        self.clock: Callable[[], float] | None = None

    @classmethod
    def open(cls, path: Path, resume: bool = False) -> RawFile:
        """Start a file, or go on with one.

        Raises ``InputFileError`` when an unfinished one would be lost, when it is of something else, or while another
        run writes to it.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stream = path.open("a", encoding="utf-8")
        except OSError as error:
            raise _unwritable(path, error) from None
        try:
            _own(path, stream)
            return cls(path, _begun(path, stream, resume), stream)
        except InputFileError:
            stream.close()
            raise

    def add(self, record: str, **values: Any) -> None:
        """Append one record, to the file and to the session. Raises ``InputFileError`` when there is no room for it."""
        line = {"record": record, **values}
        if self.clock is not None:
            line["at"] = round(self.clock(), 6)
        text = json.dumps(line)
        try:
            self._stream.write(text + "\n")
            self._stream.flush()
        except OSError as error:
            raise _unwritable(self.path, error) from None
        self.session.take(json.loads(text))

    def add_shape(self, op: Op) -> str:
        """Note a shape once; its key."""
        key = key_of(op)
        if key not in self.session.shapes:
            self.add("shape", key=key, op=encode(bare(op)))
        return key

    def add_sample(self, key: str, sample: Sample) -> None:
        """Append one visit to a shape."""
        self.add("sample", key=key, sample=_short(asdict(sample)))

    def add_step(self, step: StepSample) -> None:
        """Append one timed step of a whole model."""
        self.add("step", step=_short(asdict(step)))

    def close(self) -> None:
        """Close the file; the session stays. What could not be written has been said by then."""
        with contextlib.suppress(OSError):
            self._stream.close()


def _own(path: Path, stream: TextIO) -> None:
    """Keep other runs out of a file until it is closed. Raises ``InputFileError`` where one is in it."""
    if fcntl is None:
        return
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputFileError(
            f"another run writes to {path}", because="two runs at once disturb each other", hint="wait for it to end"
        ) from None
    except OSError:
        return  # a file system without locks


def _begun(path: Path, stream: TextIO, resume: bool) -> Session:
    """The session that a run begins with, and its file with as much: all of it, or none of a run that ended."""
    if not path.is_file() or not path.stat().st_size:
        return Session()
    if resume:
        session = read(path)  # first: what is no raw file is left as it is
        _drop_cut_line(path)
        return session
    before = read(path)
    if not before.finished:
        raise InputFileError(
            f"{path} holds measurements of a run that did not end",
            because=f"{sum(map(len, before.samples.values()))} samples would be lost",
            hint="--resume goes on from it; or delete it; or give another --raw",
        )
    stream.truncate(0)
    return Session()


def _unwritable(path: Path, error: OSError) -> InputFileError:
    return InputFileError(f"cannot write {path}", because=error.strerror or str(error))


def _drop_cut_line(path: Path) -> None:
    """Take away a last line that a kill cut short, so that the next one begins on its own; :func:`read` leaves it out,
    too, even where it lacks no more than its end."""
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        path.write_bytes(content[: content.rfind(b"\n") + 1])


def _short(values: dict[str, Any]) -> dict[str, Any]:
    return {name: float(f"{v:.5g}") if isinstance(v, float) else v for name, v in values.items() if v is not None}


def read(path: Path) -> Session:
    """The session that a raw file holds; a last line cut short by a kill is dropped.

    Raises ``InputFileError``, also for a file that holds something else: nothing is ever added to such a file.
    """
    session = Session()
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputFileError(f"cannot read {path}", because=error.strerror or str(error)) from None
    except UnicodeDecodeError:
        raise InputFileError(f"cannot read {path}", because="it is not UTF-8 text") from None
    if not text.startswith(_BEGIN[: len(text)]):
        raise InputFileError(f"{path} is no raw file of a calibration", because=f"it does not begin with {_BEGIN}")
    for number, line in enumerate(text.split("\n")[:-1], 1):  # what has no end is not complete
        try:
            record = record_of(line)
            if record.get("record") == "sample" and record["key"] not in session.shapes:
                raise ValueError(f"a sample of the shape {record['key']}, which no line before it describes")
            session.take(record)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputFileError(f"{path}:{number}: not a record of a calibration", because=_told(error)) from None
    return session


def _told(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
