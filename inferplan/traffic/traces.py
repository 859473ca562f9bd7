"""Request traces: files of arrivals and lengths, read into :class:`inferplan.traffic.requests.Requests`.

Formats, told apart by their first line:

- Azure LLM inference 2023: CSV with ``TIMESTAMP,ContextTokens,GeneratedTokens``;
- Mooncake: JSON lines with ``timestamp`` (ms), ``input_length``, ``output_length`` and ``hash_ids``, the names of the
  512-token blocks of the prompt, the last of them of what is left of it. Its timestamps come in bins of about three
  seconds, which are spread before replay: the requests of a bin are sent evenly until the next bin begins;
- plain CSV with the columns ``arrival_s`` (seconds), or ``timestamp`` (:mod:`inferplan.traffic.moments`), ``prompt``
  and ``output`` (times may be absent for a closed loop), and, of a log, what was measured: ``ttft_s`` and
  ``latency_s``, empty where an answer never came;
- traces of agents, which are sessions: Bailian and Weka (:mod:`inferplan.traffic.agent_traces`), a folder of them too.

Times are counted from the first request. Every problem is an ``InputFileError`` (exit 4) that names the line.
"""

from __future__ import annotations

import csv
import json
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, islice
from math import inf
from pathlib import Path
from typing import IO, Any

import numpy as np

from inferplan.errors import InputFileError
from inferplan.files import announce
from inferplan.mapped import mapped_file, unnamed_file
from inferplan.traffic.block_names import FileNames
from inferplan.traffic.conversations import Floats
from inferplan.traffic.moments import Kind, moment_of, require_alike
from inferplan.traffic.requests import Requests
from inferplan.units import parse_number

MOONCAKE_BLOCK = 512
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_AZURE_ROW = re.compile(
    r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6})\d*,([1-9]\d{,9}),([1-9]\d{,9})$", re.ASCII | re.MULTILINE
)
"""A row as it was published."""
_LONG = 1 << 19
"""Requests beyond which they do not stay in memory."""
_LARGEST = 2**40
_PIECE = 20_000
"""Lines of a file that are read at a time."""


_USAGE = {
    **dict.fromkeys(("prompt_tokens", "input_tokens"), "prompt"),
    **dict.fromkeys(("completion_tokens", "output_tokens"), "output"),
}
"""Columns by the names that APIs have in ``usage``."""
MEASURED = {"ttft_s": "ttft", "latency_s": "e2el"}
"""Columns of a log that say what was measured, and what that is elsewhere."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Recorded:
    """A log: the requests that came, and what became of them.

    began: the first request on the clock of the file, in seconds; since 1970 where the file has dates (``dated``).
    measured: seconds by request of ``ttft`` and ``e2el``, as far as the log has them; infinite where no answer came.
    """

    requests: Requests
    began: float = 0.0
    dated: bool = False
    measured: Mapping[str, Floats] = field(default_factory=dict)

    def first(self, span: float) -> Recorded:
        """What came in the first ``span`` seconds."""
        assert self.requests.arrival is not None
        count = int(np.searchsorted(self.requests.arrival, span))
        measured = {name: values[:count] for name, values in self.measured.items()}
        return Recorded(requests=self.requests.head(count), began=self.began, dated=self.dated, measured=measured)


class _Columns:
    """Requests as they are read: 24 bytes each, where their lines take hundreds; of many requests in files."""

    def __init__(self) -> None:
        self.times, self.prompt, self.output = array("d"), array("q"), array("q")
        self._files: list[IO[bytes]] = []
        self._most: float = _LONG

    def add(self, time: float, prompt: int, output: int) -> None:
        self.times.append(time)
        self.prompt.append(prompt)
        self.output.append(output)
        if len(self.times) >= self._most:
            self._put_aside()

    def _put_aside(self) -> None:
        """What was read goes on to the files, or stays where none can be made, as in a process of the page. Raises
        ``InputFileError`` where the disk has no room."""
        columns: list[array[Any]] = [self.times, self.prompt, self.output]
        if not self._files:
            try:
                self._files = [unnamed_file() for _ in columns]
            except OSError:
                self._most = inf
                return
        try:
            for file, column in zip(self._files, columns):
                file.write(column)
                file.flush()
                del column[:]
        except OSError as error:
            because = f"a long log is kept in files without names: {error.strerror or error}"
            raise InputFileError(
                "no room for a log", because=because, hint="TMPDIR=DIR, 24 bytes per request"
            ) from None

    def whole(self) -> list[np.ndarray[tuple[int], np.dtype[Any]]]:
        """Times, prompts and outputs."""
        columns: list[array[Any]] = [self.times, self.prompt, self.output]
        if not self._files:
            return [np.asarray(column) for column in columns]
        self._put_aside()
        maps = [mapped_file(file) for file in self._files]
        for file in self._files:
            file.close()
        return [np.frombuffer(one, column.typecode) for one, column in zip(maps, columns)]

    def add_numbers(self, lines: list[str], order: Sequence[int]) -> bool:
        """Lines of three plain numbers, unless some are others. order: where time, prompt and output stand."""
        if not lines[0].strip():
            return False
        try:
            rows = np.loadtxt(lines, delimiter=",", comments=None, ndmin=2)
        except ValueError:  # text, or rows that are not of one length
            return False
        if rows.shape[1] != len(order):
            return False
        time, prompt, output = (rows[:, place] for place in order)
        tokens = np.array((prompt, output))
        if not np.all((tokens >= 1) & (tokens < _LARGEST) & (tokens == np.floor(tokens))):
            return False
        if not np.all((time >= 0) & (time < inf)):
            return False
        self.times.frombytes(np.ascontiguousarray(time).tobytes())
        self.prompt.frombytes(prompt.astype(np.int64).tobytes())
        self.output.frombytes(output.astype(np.int64).tobytes())
        if len(self.times) >= self._most:
            self._put_aside()
        return True

    def add_published(self, lines: list[str]) -> bool:
        """Lines of Azure's files, unless some are not as they were published."""
        rows = _AZURE_ROW.findall("".join(lines))
        if len(rows) < len(lines):
            return False
        times, prompt, output = zip(*rows)
        try:
            seconds = np.array(times, "datetime64[us]").astype(np.int64) / 1e6
        except ValueError:  # a date that is none
            return False
        self.times.extend(seconds.tolist())
        self.prompt.extend(map(int, prompt))
        self.output.extend(map(int, output))
        if len(self.times) >= self._most:
            self._put_aside()
        return True


def read_trace(path: Path) -> Requests:
    """The requests of a trace file, in order of arrival; of agents session by session. Raises ``InputFileError``."""
    return read_recorded(path).requests


def read_recorded(path: Path) -> Recorded:
    """:func:`read_trace`, with what the file says of the answers."""
    if path.is_dir():
        from inferplan.traffic.agent_traces import read_agent_folder

        return Recorded(requests=read_agent_folder(path))
    try:
        announce(path)
        with path.open(encoding="utf-8-sig") as file:
            return _recorded(path, file)
    except OSError as error:
        raise InputFileError(f"cannot read {path}", because=error.strerror or str(error)) from None
    except UnicodeDecodeError:
        raise InputFileError(f"cannot read {path}", because="it is not UTF-8 text") from None


def _recorded(path: Path, file: Iterable[str]) -> Recorded:
    """What the lines of a file say, which are read one after another: a log of a month is larger than its numbers."""
    head: list[str] = []
    for line in file:
        head.append(line)
        if line.strip():
            break
    else:
        raise InputFileError(f"{path} is empty", hint=_formats())
    start, read = head[-1].rstrip("\n"), len(head)
    lines: Iterable[str] = chain(head, file)
    if start.lstrip().startswith("{"):
        agents, lines = _agents(path, start, lines)
        return _mooncake(path, lines) if agents is None else Recorded(requests=agents)
    columns = [column.strip() for column in start.split(",")]
    if tuple(columns[:3]) == _AZURE:
        return _azure(path, file, read)
    columns = [_USAGE.get(column, column) for column in columns]
    if {"prompt", "output"} <= set(columns):
        return _plain(path, columns, file, read)
    raise InputFileError(f"{path}:{read}: not a trace", because=f"the first line is {start[:80]!r}", hint=_formats())


def _formats() -> str:
    return (
        "a CSV with the columns arrival_s (or timestamp),prompt,output (or prompt_tokens,completion_tokens), "
        "an Azure 2023 CSV (TIMESTAMP,ContextTokens,GeneratedTokens), "
        "Mooncake JSON lines (timestamp, input_length, output_length, hash_ids), or sessions of agents: Bailian JSON "
        "lines (chat_id, parent_chat_id), Weka JSON (requests)"
    )


def _agents(path: Path, start: str, lines: Iterable[str]) -> tuple[Requests | None, Iterable[str]]:
    """The sessions of a trace of agents whose first line is ``start``; ``None`` for another trace, and its lines."""
    try:
        keys = set(json.loads(start))
    except (ValueError, RecursionError):  # of an object over several lines, or cut off
        lines = list(lines)
        keys = {"requests"} if any('"requests"' in line for line in lines) else set()
    if not keys & {"chat_id", "requests"}:
        return None, lines
    from inferplan.traffic import agent_traces

    if "chat_id" in keys:
        return agent_traces.bailian(path, _objects(path, lines)), ()
    return agent_traces.weka(path, agent_traces.objects(path, "".join(lines))), ()


def _objects(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of JSON lines with their line numbers."""
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:  # an integer of thousands of digits, nesting without end
            raise _bad(path, number, f"not JSON: {getattr(error, 'msg', error)}") from None
        if not isinstance(row, dict):
            raise _bad(path, number, f"is {text.strip()[:40]!r}, not an object")
        yield number, row


def _bad(path: Path, line: int, reason: str) -> InputFileError:
    return InputFileError(f"{path}:{line}: {reason}")


def _count(path: Path, line: int, name: str, value: Any) -> int:
    """A token count of at least 1."""
    try:
        number = parse_number(value) if isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        raise _bad(path, line, f"{name} is {value!r:.40}, not a number of tokens") from None
    if not 1 <= number < _LARGEST or number != int(number):
        raise _bad(path, line, f"{name} is {value}, not a whole number of tokens of 1 or more")
    return int(number)


def _tokens(path: Path, line: int, cells: Sequence[str], names: Sequence[str]) -> tuple[int, int]:
    """Tokens of a prompt and its output."""
    prompt, output = (_count(path, line, name, cell) for name, cell in zip(names, cells))
    return prompt, output


def _seconds(path: Path, line: int, name: str, value: Any) -> float:
    """A time that is finite and not negative."""
    try:
        number = parse_number(value) if isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        raise _bad(path, line, f"{name} is {value!r:.40}, not a time") from None
    if number < 0:
        raise _bad(path, line, f"{name} is {value}, a negative time")
    if not number < float("inf"):
        raise _bad(path, line, f"{name} is {value}, not a finite time")
    return number


def _rows(path: Path, lines: Iterable[str], columns: int, read: int) -> Iterator[tuple[int, list[str]]]:
    """Rows with their line numbers, of which ``read`` came before; blank lines are skipped."""
    reader = csv.reader(lines)
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise _bad(path, read + reader.line_num, f"not CSV: {error}") from None
        if not row or not any(cell.strip() for cell in row):
            continue
        if len(row) < columns:
            raise _bad(path, read + reader.line_num, f"has {len(row)} columns where {columns} are needed: cut off?")
        yield read + reader.line_num, row


def _azure(path: Path, lines: Iterable[str], read: int) -> Recorded:
    """A file as it was published is read many lines at a time, ``read`` lines come before; other lines row by row."""
    found, rest = _Columns(), iter(lines)
    while piece := list(islice(rest, _PIECE)):
        if not found.add_published(piece):
            for line, row in _rows(path, piece, 3, read):
                found.add(_azure_time(path, line, row[0]), *_tokens(path, line, row[1:], _AZURE[1:]))
        read += len(piece)
    return _ordered(path, found, dated=True)


def _azure_time(path: Path, line: int, text: str) -> float:
    try:
        return datetime.fromisoformat(text[:26]).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise _bad(path, line, f"TIMESTAMP is {text!r}, not a date and time") from None


def _plain(path: Path, columns: Sequence[str], lines: Iterable[str], read: int) -> Recorded:
    """Lines of a CSV, of which ``read`` came before: of plain numbers many at a time, up to the first that has more."""
    at = {name: index for index, name in enumerate(columns)}
    timed, stamped = "arrival_s" in at or "timestamp" in at, "arrival_s" not in at
    found, kinds = _Columns(), set[Kind]()
    measured = {name: array("d") for name in MEASURED if name in at}
    if sorted(columns) == ["arrival_s", "output", "prompt"]:
        places, rest = [at[name] for name in ("arrival_s", "prompt", "output")], iter(lines)
        while (piece := list(islice(rest, _PIECE))) and found.add_numbers(piece, places):
            read += len(piece)
        lines = chain(piece, rest)
    for line, row in _rows(path, lines, len(columns), read):
        time = 0.0
        if timed and stamped:
            moment = moment_of(path, line, row[at["timestamp"]].strip())
            time = moment.seconds
            kinds.add(moment.kind)
        elif timed:
            time = _seconds(path, line, "arrival_s", row[at["arrival_s"]])
        found.add(time, *_tokens(path, line, [row[at["prompt"]], row[at["output"]]], ("prompt", "output")))
        for name, values in measured.items():
            said = row[at[name]].strip()
            values.append(_seconds(path, line, name, said) if said else inf)
        if len(measured) == len(MEASURED) and measured["latency_s"][-1] < measured["ttft_s"][-1] < inf:
            raise _bad(path, line, "latency_s is less than ttft_s: an answer ends with its last token")
    return _ordered(path, found, timed, dated=require_alike(path, kinds), measured=measured)


def _mooncake(path: Path, lines: Iterable[str]) -> Recorded:
    found, hashes = _Columns(), list[tuple[int, ...]]()
    for number, row in _objects(path, lines):
        missing = [name for name in ("timestamp", "input_length", "output_length") if name not in row]
        if missing:
            raise _bad(path, number, f"has no {missing[0]}")
        time = _seconds(path, number, "timestamp", row["timestamp"]) / 1e3
        prompt = _count(path, number, "input_length", row["input_length"])
        found.add(time, prompt, _count(path, number, "output_length", row["output_length"]))
        names = row.get("hash_ids", [])
        if not isinstance(names, list) or not all(isinstance(name, int) for name in names):
            raise _bad(path, number, "hash_ids is not a list of whole numbers")
        hashes.append(tuple(names[: -(-prompt // MOONCAKE_BLOCK)]))
    return _ordered(path, found, hashes=hashes)


def _ordered(
    path: Path,
    columns: _Columns,
    timed: bool = True,
    hashes: list[tuple[int, ...]] | None = None,
    *,
    dated: bool = False,
    measured: Mapping[str, Sequence[float]] | None = None,
) -> Recorded:
    """Requests sorted by arrival, times from the first one on."""
    arrival, prompt, output = columns.whole()
    if not len(prompt):
        raise InputFileError(f"{path} holds no request", hint=_formats())
    if not timed:
        return Recorded(requests=Requests(prompt=prompt, output=output))
    if hashes is None and not measured and is_sorted(arrival):  # nothing moves
        began = float(arrival[0])
        for first in range(0, len(arrival), _LONG):
            arrival[first : first + _LONG] -= began
        return Recorded(requests=Requests(prompt=prompt, output=output, arrival=arrival), began=began, dated=dated)
    order = np.argsort(arrival, kind="stable")
    began = float(arrival[order[0]])
    arrival = arrival[order] - began
    named = None if hashes is None else _named([hashes[at] for at in order], prompt[order].tolist())
    requests = Requests(
        prompt=prompt[order],
        output=output[order],
        arrival=spread_in_bins(arrival) if hashes is not None else arrival,
        hashes=named,
        hash_block=MOONCAKE_BLOCK if hashes is not None else 0,
    )
    seen = {MEASURED[name]: np.asarray(values, dtype=np.float64)[order] for name, values in (measured or {}).items()}
    return Recorded(requests=requests, began=began, dated=dated, measured=seen)


def is_sorted(values: Floats) -> bool:
    """Whether none is less than the one before it; some are looked at at a time."""
    starts = range(0, len(values), _LONG)
    return all(bool(np.all(part[1:] >= part[:-1])) for part in (values[first : first + _LONG + 1] for first in starts))


def _named(names: Sequence[tuple[int, ...]], prompts: Sequence[int]) -> FileNames:
    """The names of prompts; one with the last block of a prompt is of what is there of it."""
    ends = [min(len(one) * MOONCAKE_BLOCK, prompt) for one, prompt in zip(names, prompts)]
    return FileNames.of(names, ends, MOONCAKE_BLOCK)


def spread_in_bins(arrival: Floats) -> Floats:
    """Sorted times in bins, spread: the requests of a bin evenly until the next begins (the last, as long as the one
    before it).
    """
    values, first, counts = np.unique(arrival, return_index=True, return_counts=True)
    if len(values) < 2:
        return arrival
    gaps = np.append(np.diff(values), values[-1] - values[-2])
    within = np.arange(len(arrival)) - np.repeat(first, counts)
    return np.repeat(values, counts) + within * np.repeat(gaps / counts, counts)
