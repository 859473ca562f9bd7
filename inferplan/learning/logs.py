"""Lines in which engines say how long their steps took: SGLang, vLLM and TensorRT-LLM. Other lines are not read.

- SGLang (sgl-project/sglang 01bb3c8, ``srt/managers/scheduler_metrics_mixin.py``; 00eef54, ``srt/observability``):
  ``Decode batch`` every ``decode_log_interval`` (40) decode steps, whose ``gen throughput`` is what these made over the
  time since the last such line, prompts in between included; ``Prefill batch`` for every batch of prompts.
- vLLM (``vllm/v1/engine/core.py``, ``--enable-logging-iteration-details``): ``Iteration(n)`` for every step. Its
  ``Engine 000: Avg prompt throughput`` (a6f0308, ``vllm/v1/metrics/loggers.py``) is a mean over some ten seconds, which
  says how long a step took where the engine decoded the same sequences throughout.
- TensorRT-LLM (``_torch/pyexecutor/py_executor.py``, ``print_iter_log``): ``iter = n`` with ``host_step_time``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from inferplan.errors import InputFileError
from inferplan.learning.observed import Recorded, StepLoad, differ, figure
from inferplan.units import MOST

SGLANG, VLLM, TRTLLM = "SGLang's log", "vLLM's log", "TensorRT-LLM's log"
_BROKEN = "lines in which a number is none"
_INTERVAL = 40
"""Decode steps between two lines where the log does not say (``--decode-log-interval`` of SGLang)."""

_SGLANG = re.compile(
    r"(?P<rank>(?:DP|TP|PP|EP)\d[^\]\n]*)?\]? ?(?P<what>Prefill|Decode) batch[.,]? ?(?:\[\d+\], )?(?P<rest>#.*)"
)
_FIELD = re.compile(r"(?P<name>[#\w][\w #()/.-]*?): (?P<value>[-\w.]+)")
_EVERY = re.compile(r"decode_log_interval['\"]?[=:] ?(-?\d+)")
_ITERATION = re.compile(
    r"Iteration\(\d+\): (\d+) context requests, (\d+) context tokens, (\d+) generation requests, "
    r"(\d+) generation tokens, iteration elapsed time: ([\d.]+) ms"
    r"(?P<dummy> \(dummy\))?(?:, [CG]PU KV cache usage: (?P<used>[\d.]+)%)?"
)
_ENGINE = re.compile(r"(?:(?<=EngineCore_DP)(\d+)|(?<=\] Engine )(\d+)(?=: ))[^\n]*(?:Iteration\(|Avg prompt)")
_AVERAGE = re.compile(
    r"Avg prompt throughput: ([\d.]+) tokens/s, Avg generation throughput: ([\d.]+) tokens/s, "
    r"Running: (\d+) reqs, Waiting: (\d+) reqs, [CG]PU KV cache usage: ([\d.]+)%"
)
_POOL = re.compile(r"[CG]PU KV cache size: ([\d,]+) tokens")
_TRTLLM = re.compile(r"\biter = \d+,.*?host_step_time = ([\d.]+) ?ms")
_STATES = re.compile(r"'(num_ctx_requests|num_ctx_tokens|num_generation_tokens|cached_kv_tokens)': (\d+)")
_NEEDED = ("num_ctx_requests", "num_ctx_tokens", "num_generation_tokens")
_SCHEDULED = re.compile(r"num_scheduled_requests[:=]? ?=? ?(\d+)")


def matches(text: str) -> bool:
    """Whether a text holds lines of a kind that is read here."""
    return any(pattern.search(text) for pattern in (_SGLANG, _ITERATION, _AVERAGE, _TRTLLM))


def read(text: str, where: str) -> Recorded:
    """The steps of a log.

    Raises ``InputFileError`` for lines of several ranks, or of drafts.
    """
    if _SGLANG.search(text):
        return _sglang(text, where)
    return _vllm(text, where) if _ITERATION.search(text) or _AVERAGE.search(text) else _trtllm(text, where)


class _Batch(NamedTuple):
    """A line of SGLang's scheduler: its fields as they are written, and the numbers among those that are read."""

    line: int
    decodes: bool
    fields: dict[str, str]
    numbers: dict[str, float | None]

    def number(self, *names: str) -> float | None:
        """The first of the fields that is there."""
        return next((self.numbers[name] for name in names if name in self.numbers), None)


def _batches(text: str, where: str) -> Iterator[_Batch]:
    ranks = set[str]()
    for line, match in _matched(text, _SGLANG):
        fields = {one["name"].strip(): one["value"] for one in _FIELD.finditer(match["rest"])}
        ranks.add(re.sub(r"TP\d+ ?", "", match["rank"] or ""))
        if len(ranks) > 1 or "accept len" in fields:
            what = (
                "drafts, whose steps are others" if "accept len" in fields else f"ranks {' and '.join(sorted(ranks))}"
            )
            raise InputFileError(f"{where}:{line}: lines of {what}", hint="the log of one rank, without drafts")
        numbers = {name: figure(fields[name], whole) for name, whole in _READ.items() if name in fields}
        yield _Batch(line, match["what"] == "Decode", fields, numbers)


def _sglang(text: str, where: str) -> Recorded:
    """Windows between two ``Decode batch`` lines: so many decode steps, and the prompts between them.

    None goes over a line with a number that is none, as it may be one of its prompts or its end.
    """
    found, before, prompts = Recorded.of(SGLANG, "sglang"), None, list[_Batch]()
    steps = _interval(text, where)
    for batch in _batches(text, where):
        if None in batch.numbers.values():
            found.skip(_BROKEN)
            before, prompts = None, []
            continue
        if not batch.decodes:
            prompts.append(batch)
            continue
        if before is not None:
            why = _unfit(before, batch, prompts)
            if why:
                found.skip(why)
            else:
                _window(found, (before, batch), prompts, steps, f"{where}:{batch.line}")
        before, prompts = batch, []
    return found


def _interval(text: str, where: str) -> float:
    """Decode steps between two lines."""
    said = _EVERY.search(text)
    if said is None:
        return float(_INTERVAL)
    steps = figure(said[1], whole=True)
    if not steps:
        raise InputFileError(
            f"{where}: decode_log_interval is {said[1][:40]}",
            because=f"a window is a number of decode steps, from 1 to {MOST:.0e}",
        )
    return steps


_RUNNING, _USED, _RATE = "#running-req", ("#token", "#full token"), "gen throughput (token/s)"
_READ = {_RATE: False} | dict.fromkeys((_RUNNING, *_USED, "#new-seq", "#new-token", "#cached-token"), True)
"""The fields that are read, and whether each counts something."""


def _unfit(before: _Batch, batch: _Batch, prompts: Sequence[_Batch]) -> str:
    """Why a window does not say how long its steps took; empty where it does."""
    running = [one.number(_RUNNING) or 0.0 for one in (before, *prompts, batch)]
    if batch.fields.get("cuda graph") == "False":
        return "decode steps without graphs"
    if not batch.number(_RATE) or not batch.number(*_USED):
        return "lines without a rate or tokens in use"
    if min(running) == 0.0:
        return "windows in which nothing ran for a while"
    return "windows whose batch changed by more than a tenth" if differ(running) else ""


def _window(found: Recorded, ends: tuple[_Batch, _Batch], prompts: Sequence[_Batch], steps: float, where: str) -> None:
    """The mean decode step of a window, with its share of the prompts that ran between."""
    last = ends[1]
    running = sum(one.number(_RUNNING) or 0.0 for one in ends) / 2
    held = [(one.number(*_USED) or 0.0) / (one.number(_RUNNING) or 1.0) for one in ends]
    loads = [(1.0, StepLoad(decodes=running, context=sum(held) / 2))]
    for one in prompts:
        number, new = one.number("#new-seq") or 0.0, one.number("#new-token") or 0.0
        if number and new:
            cached = one.number("#cached-token") or 0.0
            loads.append((1.0 / steps, StepLoad(number, new / number, cached / number)))
    found.keep(running / (last.number(_RATE) or 1.0), loads, where)


def _vllm(text: str, where: str) -> Recorded:
    engines = sorted({str(int("".join(one))) for one in _ENGINE.findall(text)})
    if len(engines) > 1:
        raise InputFileError(f"{where} has lines of several engines: {', '.join(engines)}", hint="the log of one rank")
    found, size = Recorded.of(VLLM, "vllm"), _POOL.search(text)
    pool = figure(size[1].replace(",", ""), whole=True) if size else None
    for line, match in _matched(text, _ITERATION):
        numbers = _figures([*match.groups()[:5], match["used"] or "0"])
        if numbers is None:
            found.skip(_BROKEN)
            continue
        prompts, new, decodes, tokens, milliseconds, share = numbers
        if match["dummy"] or (not (prompts and new) and not decodes):
            found.skip("steps without requests")
        elif tokens != decodes:
            found.skip("steps with drafts: more tokens than sequences that decode")
        else:
            used = share / 100 * pool / (decodes + prompts) if match["used"] and pool else None
            load = StepLoad(prompts, new / prompts if prompts else 0.0, 0.0, decodes, used if decodes else 0.0)
            found.keep(milliseconds / 1e3, [(1.0, load)], f"{where}:{line}")
    if not found.observed:
        _averages(text, where, pool, found)
    return found


def _averages(text: str, where: str, pool: float | None, found: Recorded) -> None:
    """Means over ten seconds: a step's time where the same sequences decoded and no prompt came."""
    before = 0.0
    for line, match in _matched(text, _AVERAGE):
        numbers = _figures(match.groups())
        if numbers is None:
            found.skip(_BROKEN)
            before = 0.0
            continue
        prompt, rate, running, waiting, used = numbers
        same, before = running == before, running
        if prompt or waiting or not same or not (running and rate):
            found.skip("means of ten seconds in which prompts came or requests left")
            continue
        context = used / 100 * pool / running if pool else None
        found.keep(running / rate, [(1.0, StepLoad(decodes=running, context=context))], f"{where}:{line}")


def _trtllm(text: str, where: str) -> Recorded:
    found = Recorded.of(TRTLLM, "trtllm")
    for line, match in _matched(text, _TRTLLM):
        end = text.find("\n", match.start())
        whole = text[match.start() : end if end >= 0 else len(text)]
        states, scheduled = dict(_STATES.findall(whole)), _SCHEDULED.search(whole)
        if scheduled is None or not states.keys() >= set(_NEEDED):
            found.skip("lines without the states of their step")
            continue
        held = states.get("cached_kv_tokens")
        numbers = _figures([match[1], scheduled[1], *(states[name] for name in _NEEDED), held or "0"])
        if numbers is None:
            found.skip(_BROKEN)
            continue
        milliseconds, requests, prompts, new, tokens, cached = numbers
        decodes = requests - prompts
        if tokens != decodes or not (decodes or (prompts and new)):
            found.skip("steps with drafts, or without requests")
            continue
        context = None if held is None or prompts else cached / decodes
        load = StepLoad(prompts, new / prompts if prompts else 0.0, 0.0, decodes, context if decodes else 0.0)
        found.keep(milliseconds / 1e3, [(1.0, load)], f"{where}:{line}")
    return found


def _figures(texts: Sequence[str]) -> list[float] | None:
    """The numbers of a line; ``None`` where one of them is none."""
    numbers = [one for one in map(figure, texts) if one is not None]
    return numbers if len(numbers) == len(texts) else None


def _matched(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[int, re.Match[str]]]:
    """Every line that matches, with its number."""
    line, at = 1, 0
    for match in pattern.finditer(text):
        line, at = line + text.count("\n", at, match.start()), match.start()
        yield line, match
