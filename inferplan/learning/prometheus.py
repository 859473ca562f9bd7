"""Scrapes of ``/metrics`` in Prometheus' text format: what a server's counters rose by from one scrape to the next.

A file may hold several scrapes one after another: a new one begins where a series comes again. Times of scrapes are
not needed, as every figure here is seconds over a count. Scrapes are in the order of their file; files of one scrape
each are one after another, files of several are servers of their own. Of an export of a Prometheus server
(:mod:`inferplan.measuring.range_export`) each moment is a scrape. Where a counter falls a server began anew.

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
from collections.abc import Collection, Iterator, Sequence

from inferplan.errors import InputFileError
from inferplan.learning.observed import STEADY, Recorded, StepLoad, differ, figure, steps_of_gaps
from inferplan.measuring.exposition import Sample, samples
from inferplan.measuring.range_export import Exported

KIND = "scrapes of /metrics"
_RANKS = ("engine", "dp_rank")
_GAUGE = re.compile(r"^# TYPE (\S+) gauge[ \t]*$", re.MULTILINE)
_COUNTERS = ("_total", "_count", "_sum")
"""How names of counters end, and those of a histogram's."""
_FEWEST = 50
"""Steps between two scrapes, at the least: below, the ends of the window count."""


def matches(text: str) -> bool:
    """Whether a text is a scrape of an engine that is read here."""
    return any(one.present in text and any(samples(text)) for one in _ENGINES)


class _Scrape:
    """The samples of one scrape: values by name, summed over labels, and by name and ``method``; labels of infos.

    broken: names of which a sample is no number of zero or more (NaN, +Inf, -1); they have no value.
    """

    def __init__(self, where: str, gauges: Collection[str]) -> None:
        self.where, self.gauges = where, gauges
        self.values, self.infos = dict[str, float](), dict[str, dict[str, str]]()
        self.broken = set[str]()

    def __getitem__(self, name: str) -> float:
        """Raises :class:`_Lacking` for a metric that is missing or broken."""
        if name in self.broken:
            raise _Lacking(f"windows in which {name} is not a number of zero or more")
        if name not in self.values:
            raise _Lacking(f"windows of a scrape that lacks {name}")
        return self.values[name]

    def has(self, name: str) -> bool:
        """Whether it says something of a metric, be it broken."""
        return name in self.values or name in self.broken

    def names(self, prefix: str) -> set[str]:
        """The metrics of an engine of which it says something."""
        return {name for name in (*self.values, *self.broken) if name.startswith(prefix)}

    def take(self, sample: Sample) -> dict[str, str]:
        """Take a sample in; its labels."""
        known = sample.known
        if sample.name.endswith("_info"):
            self.infos.setdefault(sample.name, known)
        else:
            for key in (sample.name, f"{sample.name}/{known['method']}") if "method" in known else (sample.name,):
                self.add(key, sample.value)
        return known

    def add(self, name: str, text: str) -> None:
        """Add a sample to the others of its name."""
        value = figure(text)
        if value is None:
            self.broken.add(name)
        else:
            self.values[name] = self.values.get(name, 0.0) + value

    def counters(self, prefix: str) -> dict[str, float]:
        """The values that only rise while a server runs."""
        return {
            name: value
            for name, value in self.values.items()
            if name.startswith(prefix) and name.partition("/")[0].endswith(_COUNTERS)
            and name.partition("/")[0] not in self.gauges and name not in self.broken
        }  # fmt: skip


class _Lacking(Exception):
    """What a window cannot be read for, in words."""


def read_all(files: Sequence[tuple[str, str]], exports: Sequence[Exported] = ()) -> Recorded:
    """What scrapes say of steps; files: paths and their texts; exports: servers that a Prometheus server read.

    Windows in which a counter falls, or a metric is missing or no number, are counted. Raises ``InputFileError`` for
    scrapes of several engines or ranks, and for fewer than two of a server.
    """
    servers = _servers([list(_scrapes(path, text)) for path, text in files])
    servers += [list(_kept(one)) for one in exports]
    scrapes = [one for server in servers for one in server]
    engines = [one for one in _ENGINES if any(scrape.names(one.prefix) for scrape in scrapes)]
    if len(engines) != 1 or max(map(len, servers)) < 2:
        what = f"{max(map(len, servers))} scrape" if len(engines) == 1 else "metrics of several engines"
        what = what if engines else "no metrics of vLLM, SGLang, llama.cpp or TGI"
        where = files[0][0] if files else exports[0].where
        raise InputFileError(
            f"{where} holds {what}", because="a step's time is what counters rise by between two", hint=_HOW
        )
    engine, found = engines[0], Recorded.of(f"{KIND} of {engines[0].name}", engines[0].engine)
    for server in servers:
        for window in _windows(server, engine.prefix, found):
            try:
                engine.window(window, found)
            except _Lacking as lacking:
                found.skip(str(lacking))
    return found


def _windows(server: Sequence[_Scrape], prefix: str, found: Recorded) -> Iterator[_Window]:
    """Each two scrapes between which a server ran on.

    A scrape that lacks what the one before it has was cut, as series stay while a server runs: it is left out, so that
    a counter that it lacks is not taken to have been zero.
    """
    before = server[0]
    for after in server[1:]:
        window = _Window(before, after)
        if window.falls(prefix):
            found.skip(_FELL)
        elif before.names(prefix) - after.names(prefix):
            found.skip("scrapes that were cut: they lack what the one before them has")
            continue
        else:
            yield window
        before = after


_FELL = "windows in which a counter fell: the server restarted, or another one answered"


def _servers(files: Sequence[list[_Scrape]]) -> list[list[_Scrape]]:
    """Scrapes that follow each other: those of a file, and files of one scrape each in the order in which they are."""
    alone = [one for file in files if len(file) == 1 for one in file]
    return [file for file in files if len(file) > 1] + ([alone] if alone else [])


_HOW = "a scrape each ten seconds: while sleep 10; do curl -s URL/metrics >> metrics.txt; done"


def _scrapes(path: str, text: str) -> Iterator[_Scrape]:
    number, seen, ranks = 1, set[tuple[str, str]](), set[str]()
    gauges = frozenset(_GAUGE.findall(text))
    scrape = _Scrape(f"{path}: scrape 1", gauges)
    for sample in samples(text):
        name, labels = sample.name, sample.labels
        if (name, labels) in seen:
            yield scrape
            number, seen, scrape = number + 1, set(), _Scrape(f"{path}: scrape {number + 1}", gauges)
        seen.add((name, labels))
        _require_one_rank(scrape.take(sample), ranks, path)
    yield scrape


def _kept(one: Exported) -> Iterator[_Scrape]:
    """The scrapes of a server in an export."""
    ranks = set[str]()
    for at, found in one.moments:
        scrape = _Scrape(one.at(at), frozenset())
        for sample in found:
            _require_one_rank(scrape.take(sample), ranks, one.where)
        yield scrape


def _require_one_rank(labels: dict[str, str], ranks: set[str], where: str) -> None:
    """Note the rank that a sample is of. Raises ``InputFileError`` for a second one."""
    ranks |= {f"{rank} {labels[rank]}" for rank in _RANKS if rank in labels}
    if len(ranks) > len({rank.split()[0] for rank in ranks}):
        raise InputFileError(f"{where} has metrics of several ranks: {', '.join(sorted(ranks))}", hint="--dp 1")


class _Window:
    """Two scrapes: what counters rose by, and what gauges were on average."""

    def __init__(self, before: _Scrape, after: _Scrape) -> None:
        self.before, self.after, self.where = before, after, after.where

    def rise(self, *names: str) -> float:
        """By how much the first of some counters that is there rose."""
        name = next((one for one in names if self.after.has(one)), names[0])
        return self.after[name] - self.before[name]

    def rise_if(self, name: str) -> float:
        """By how much a counter rose that is there once it counts; 0 before."""
        if self.before.has(name):
            return self.rise(name)
        return self.after[name] if self.after.has(name) else 0.0

    def mean(self, *names: str) -> float | None:
        """The mean of a gauge over both scrapes; ``None`` where neither has one of the names."""
        name = next((one for one in names if self.before.has(one) or self.after.has(one)), None)
        return None if name is None else (self.before[name] + self.after[name]) / 2

    def info(self, name: str) -> dict[str, str]:
        """The labels of an info, which is the same in every scrape of a server."""
        return self.after.infos.get(name) or self.before.infos.get(name, {})

    def falls(self, prefix: str) -> bool:
        """Whether a counter fell."""
        after = self.after.counters(prefix)
        return any(after.get(name, value) < value for name, value in self.before.counters(prefix).items())

    def unfit(self, running: str, steps: float) -> str:
        """Why the window says nothing of a step; empty where it does."""
        ends = self.before[running], self.after[running]
        if steps < _FEWEST:
            return f"windows of fewer than {_FEWEST} steps"
        if not min(ends):
            return "windows in which nothing ran for a while"
        return "windows whose batch changed by more than a tenth" if differ(ends) else ""


class _Engine:
    """What an engine's metrics say of its steps."""

    name = engine = prefix = counter = present = ""
    """engine: its name in the catalogue."""

    def window(self, window: _Window, found: Recorded) -> None:
        """Add what a window says to ``found``."""
        raise NotImplementedError


class _Vllm(_Engine):
    name, engine, prefix, present = "vLLM", "vllm", "vllm:", "vllm:iteration_tokens_total"
    counter = "vllm:iteration_tokens_total_count"
    _GAPS = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")

    def window(self, window: _Window, found: Recorded) -> None:
        steps = window.rise(self.counter)
        tokens = window.rise(*(f"{name}_count" for name in self._GAPS))
        why = window.unfit("vllm:num_requests_running", steps)
        running = window.mean("vllm:num_requests_running") or 0.0
        if not why and (not tokens or differ((tokens / steps, running))):
            why = "windows whose tokens per step are not the running requests: drafts, or no work in between"
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
    info = window.info("vllm:cache_config_info")
    blocks, size = (figure(info.get(name), whole=True) for name in ("num_gpu_blocks", "block_size"))
    return used * blocks * size / running if used is not None and blocks and size and running else None


class _Sglang(_Engine):
    name, engine, prefix, present = "SGLang", "sglang", "sglang:", "sglang:num_running_reqs"
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
    name, engine, prefix, present = "llama.cpp", "llama.cpp", "llamacpp:", "llamacpp:n_decode_total"
    counter = "llamacpp:n_decode_total"

    def window(self, window: _Window, found: Recorded) -> None:
        tokens, steps = window.rise("llamacpp:tokens_predicted_total"), window.rise(self.counter)
        busy = "llamacpp:n_busy_slots_per_decode"
        ends = [one[busy] * one[self.counter] for one in (window.before, window.after)]
        slots = (ends[1] - ends[0]) / steps if steps else 0.0
        if steps < _FEWEST or not tokens:
            found.skip(f"windows of fewer than {_FEWEST} steps")
        elif slots < 1.0 - STEADY:
            found.skip("windows in which fewer than one slot decoded")
        elif slots > 1.0 + STEADY and window.rise("llamacpp:prompt_tokens_total"):
            found.skip("windows in which prompts of some slots ran beside others that decode")
        else:
            cells = window.mean("llamacpp:kv_cache_tokens")
            context = None if cells is None else cells / max(slots, 1.0)
            seconds = window.rise("llamacpp:tokens_predicted_seconds_total") / tokens
            found.keep(seconds, [(1.0, StepLoad(decodes=max(slots, 1.0), context=context))], window.where)


class _Tgi(_Engine):
    name, engine, prefix, present = "TGI", "none", "tgi_", "tgi_batch_inference_duration"
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
