"""Scrapes of ``/metrics`` in Prometheus' text format: what a server's counters rose by from one scrape to the next.

The format is that of prometheus.io/docs/instrumenting/exposition_formats (0.0.4): ``name{label="value"} number``. A
file may hold several scrapes one after another: a new one begins where a series comes again. Times of scrapes are not
needed, as every figure here is seconds over a count, and scrapes are put in order by a counter.

| engine | a step's seconds | sequences | tokens behind each |
|---|---|---|---|
| vLLM (a6f0308, ``vllm/v1/metrics/loggers.py``) | ``vllm:inter_token_latency_seconds`` | its count over the steps of
  ``vllm:iteration_tokens_total`` | ``vllm:kv_cache_usage_perc`` of ``vllm:cache_config_info`` |
| SGLang (``srt/metrics/collector.py``) | ``sglang:inter_token_latency_seconds`` | ``sglang:num_running_reqs`` |
  ``sglang:num_used_tokens`` |
| llama.cpp (``tools/server``, ``--metrics``) | ``llamacpp:tokens_predicted_seconds_total`` over tokens |
  ``llamacpp:n_busy_slots_per_decode`` | ``llamacpp:kv_cache_tokens``, where there is one |
| TGI (``router/src/infer``) | ``tgi_batch_inference_duration`` by ``method`` | ``tgi_batch_current_size`` | not said |

A gap between tokens is a mean over tokens: of a window whose batch changes little it is that over steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from inferplan.errors import InputFileError
from inferplan.learning.observed import Recorded, StepLoad, steps_of_gaps

KIND = "scrapes of /metrics"
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{[^\n]*\})?[ \t]+([-+\w.]+)(?:[ \t]+-?\d+)?[ \t]*$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_RANKS = ("engine", "dp_rank")
_STEADY = 0.1
"""How far, as a share, the running requests of two scrapes may differ, beyond one request."""
_FEWEST = 50
"""Steps between two scrapes, at the least: below, the ends of the window count."""


def matches(text: str) -> bool:
    """Whether a text is a scrape of an engine that is read here."""
    return any(one.present in text and _SAMPLE.search(text) is not None for one in _ENGINES)


class _Scrape:
    """The samples of one scrape: values by name, summed over labels, and by name and ``method``; labels of infos."""

    def __init__(self, where: str) -> None:
        self.where, self.values, self.infos = where, dict[str, float](), dict[str, dict[str, str]]()

    def __getitem__(self, name: str) -> float:
        """Raises ``InputFileError`` for a metric that is missing."""
        if name not in self.values:
            raise InputFileError(f"{self.where} lacks {name}", hint="docs/learn.md lists what each engine has to say")
        return self.values[name]

    def first(self, *names: str) -> float | None:
        """The first of several names that is there."""
        return next((self.values[name] for name in names if name in self.values), None)


def read_all(files: Sequence[tuple[str, str]]) -> Recorded:
    """What scrapes of one server say of its steps; files: paths and their texts.

    Raises ``InputFileError`` for scrapes of several engines or ranks, for fewer than two, and for metrics that are
    missing.
    """
    scrapes = [scrape for path, text in files for scrape in _scrapes(path, text)]
    engines = [one for one in _ENGINES if any(name.startswith(one.prefix) for s in scrapes for name in s.values)]
    if len(engines) != 1 or len(scrapes) < 2:
        what = f"{len(scrapes)} scrape" if len(engines) == 1 else "metrics of several engines"
        raise InputFileError(
            f"{files[0][0]} holds {what}", because="a step's time is what counters rise by between two", hint=_HOW
        )
    engine, found = engines[0], Recorded.of(f"{KIND} of {engines[0].name}")
    scrapes.sort(key=lambda one: one[engine.counter])
    for before, after in pairwise(scrapes):
        engine.window(_Window(before, after), found)
    return found


_HOW = "a scrape each ten seconds: while sleep 10; do curl -s URL/metrics >> metrics.txt; done"


def _scrapes(path: str, text: str) -> Iterator[_Scrape]:
    number, seen, ranks = 1, set[tuple[str, str]](), set[str]()
    scrape = _Scrape(f"{path}: scrape 1")
    for match in _SAMPLE.finditer(text):
        name, labels = match[1], match[2] or ""
        if (name, labels) in seen:
            yield scrape
            number, seen, scrape = number + 1, set(), _Scrape(f"{path}: scrape {number + 1}")
        seen.add((name, labels))
        known = dict(_LABEL.findall(labels))
        ranks |= {f"{rank} {known[rank]}" for rank in _RANKS if rank in known}
        if len(ranks) > len({rank.split()[0] for rank in ranks}):
            raise InputFileError(f"{path} has metrics of several ranks: {', '.join(sorted(ranks))}", hint="--dp 1")
        if name.endswith("_info"):
            scrape.infos.setdefault(name, known)
            continue
        try:
            value = float(match[3])
        except ValueError:
            raise InputFileError(f"{path}: {name} is {match[3][:40]!r}, and no number") from None
        for key in (name, f"{name}/{known['method']}") if "method" in known else (name,):
            scrape.values[key] = scrape.values.get(key, 0.0) + value
    yield scrape


class _Window:
    """Two scrapes: what counters rose by, and what gauges were on average."""

    def __init__(self, before: _Scrape, after: _Scrape) -> None:
        self.before, self.after, self.where = before, after, after.where

    def rise(self, *names: str) -> float:
        """By how much the first of some counters that is there rose."""
        name = next((one for one in names if one in self.after.values), names[0])
        return self.after[name] - self.before[name]

    def rise_if(self, name: str) -> float:
        """By how much a counter rose that is there once it counts; 0 before."""
        return self.after.values.get(name, 0.0) - self.before.values.get(name, 0.0)

    def mean(self, *names: str) -> float | None:
        """The mean of a gauge over both scrapes."""
        ends = self.before.first(*names), self.after.first(*names)
        return None if ends[0] is None or ends[1] is None else (ends[0] + ends[1]) / 2

    def unfit(self, running: str, steps: float) -> str:
        """Why the window says nothing of a step; empty where it does."""
        ends = self.before[running], self.after[running]
        if steps < _FEWEST:
            return f"windows of fewer than {_FEWEST} steps"
        return "windows whose batch changed by more than a tenth" if _differ(*ends) else ""


def _differ(one: float, other: float) -> bool:
    return abs(one - other) > max(_STEADY * max(one, other), 1.0)


class _Engine:
    """What an engine's metrics say of its steps."""

    name = prefix = counter = present = ""

    def window(self, window: _Window, found: Recorded) -> None:
        """Add what a window says to ``found``."""
        raise NotImplementedError


class _Vllm(_Engine):
    name, prefix, present = "vLLM", "vllm:", "vllm:iteration_tokens_total"
    counter = "vllm:iteration_tokens_total_count"
    _GAPS = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")

    def window(self, window: _Window, found: Recorded) -> None:
        steps = window.rise(self.counter)
        tokens = window.rise(*(f"{name}_count" for name in self._GAPS))
        why = window.unfit("vllm:num_requests_running", steps)
        running = window.mean("vllm:num_requests_running") or 0.0
        if not why and (not tokens or _differ(tokens / steps, running)):
            why = "windows whose tokens a step are not the running requests: drafts, or no work in between"
        if why:
            found.skip(why)
            return
        seconds = window.rise(*(f"{name}_sum" for name in self._GAPS)) / tokens
        decodes, prompts = tokens / steps, window.rise("vllm:time_to_first_token_seconds_count")
        context = _held(window, running)
        cached = window.rise_if("vllm:prefix_cache_hits_total") or window.rise_if("vllm:gpu_prefix_cache_hits_total")
        new = max(window.rise("vllm:prompt_tokens_total") - cached, 1.0)
        prompt = new / max(prompts, 1.0), cached / max(prompts, 1.0)
        coming = prompts / steps  # each in the place of a sequence that decodes
        found.keep(seconds, steps_of_gaps(decodes + coming, coming, prompt, context, mixed=True), window.where)


def _held(window: _Window, running: float) -> float | None:
    """Tokens behind each of vLLM's sequences: of its cache the share in use."""
    used = window.mean("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    info = window.after.infos.get("vllm:cache_config_info", {})
    blocks, size = info.get("num_gpu_blocks", ""), info.get("block_size", "")
    if used is None or not (blocks.isdigit() and size.isdigit()) or not running:
        return None
    return used * float(blocks) * float(size) / running


class _Sglang(_Engine):
    name, prefix, present = "SGLang", "sglang:", "sglang:num_running_reqs"
    counter = "sglang:inter_token_latency_seconds_count"

    def window(self, window: _Window, found: Recorded) -> None:
        running, tokens = window.mean("sglang:num_running_reqs") or 0.0, window.rise(self.counter)
        steps = tokens / running if running else 0.0
        why = window.unfit("sglang:num_running_reqs", steps)
        if why:
            found.skip(why)
            return
        used = window.mean("sglang:num_used_tokens")
        context = None if used is None else used / running
        prompts, cached = window.rise_if("sglang:num_requests_total"), window.rise_if("sglang:cached_tokens_total")
        new = max(window.rise_if("sglang:prompt_tokens_total") - cached, 1.0)
        prompt = new / max(prompts, 1.0), cached / max(prompts, 1.0)
        seconds = window.rise("sglang:inter_token_latency_seconds_sum") / tokens
        found.keep(seconds, steps_of_gaps(running, prompts / steps, prompt, context, mixed=False), window.where)


class _LlamaCpp(_Engine):
    name, prefix, present = "llama.cpp", "llamacpp:", "llamacpp:n_decode_total"
    counter = "llamacpp:n_decode_total"

    def window(self, window: _Window, found: Recorded) -> None:
        tokens, steps = window.rise("llamacpp:tokens_predicted_total"), window.rise(self.counter)
        busy = "llamacpp:n_busy_slots_per_decode"
        ends = [one[busy] * one[self.counter] for one in (window.before, window.after)]
        slots = (ends[1] - ends[0]) / steps if steps else 0.0
        if steps < _FEWEST or not tokens:
            found.skip(f"windows of fewer than {_FEWEST} steps")
        elif slots > 1.0 + _STEADY and window.rise("llamacpp:prompt_tokens_total"):
            found.skip("windows in which prompts of some slots ran beside others that decode")
        else:
            cells = window.mean("llamacpp:kv_cache_tokens")
            context = None if cells is None else cells / max(slots, 1.0)
            seconds = window.rise("llamacpp:tokens_predicted_seconds_total") / tokens
            found.keep(seconds, [(1.0, StepLoad(decodes=max(slots, 1.0), context=context))], window.where)


class _Tgi(_Engine):
    name, prefix, present = "TGI", "tgi_", "tgi_batch_inference_duration"
    counter = "tgi_batch_inference_duration_count/decode"

    def window(self, window: _Window, found: Recorded) -> None:
        steps = window.rise(self.counter)
        why = window.unfit("tgi_batch_current_size", steps)
        running = window.mean("tgi_batch_current_size")
        if why or not running:
            found.skip(why or "windows in which nothing ran")
            return
        seconds = window.rise("tgi_batch_inference_duration_sum/decode") / steps
        found.keep(seconds, [(1.0, StepLoad(decodes=running, context=None))], window.where)
        batches = window.rise("tgi_batch_inference_duration_count/prefill")
        requests = window.rise("tgi_request_input_length_count")
        if batches and requests:
            new = window.rise("tgi_request_input_length_sum") / requests
            spent = window.rise("tgi_batch_inference_duration_sum/prefill") / batches
            found.keep(spent, [(1.0, StepLoad(max(requests / batches, 1.0), new, 0.0))], window.where)


_ENGINES: tuple[_Engine, ...] = (_Vllm(), _Sglang(), _LlamaCpp(), _Tgi())
