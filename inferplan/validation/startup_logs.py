"""Start-up logs of vLLM and SGLang: the memory they report against the memory predicted.

The log is the engine's own measurement: bytes of weights on a device, tokens of its cache, requests it can hold.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inferplan.errors import InputFileError
from inferplan.estimate.memory import Footprint
from inferplan.files import LARGEST_SPEC, announce, read_text
from inferplan.serving.flags import with_flags
from inferplan.validation.deploy import deployment_of
from inferplan.validation.predict import row_flags
from inferplan.validation.rows import Facts, Run, Unusable, interpret

GIB = 2.0**30
_NUMBER = r"([\d,]+(?:\.\d+)?)"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One quantity of a log: what the engine measured and what the model says."""

    name: str
    unit: str
    logged: float
    predicted: float

    @property
    def error(self) -> float:
        return self.predicted / self.logged - 1.0


@dataclass(frozen=True, kw_only=True)
class Startup:
    """What a log says: facts about the run, and quantities by name (bytes, tokens, requests)."""

    engine: str
    facts: Facts
    logged: dict[str, float]


_VLLM_VALUES = {
    "weights": (re.compile(rf"[Mm]odel loading took {_NUMBER} Gi?B"), GIB),
    "kv_bytes": (re.compile(rf"Available KV cache memory: {_NUMBER} GiB"), GIB),
    "kv_tokens": (re.compile(rf"GPU KV cache size: {_NUMBER} tokens"), 1.0),
    "blocks": (re.compile(rf"# (?:GPU|CUDA) blocks: {_NUMBER}"), 1.0),
    "concurrency": (re.compile(rf"Maximum concurrency for [\d,]+ tokens per request: {_NUMBER}x"), 1.0),
}
_VLLM_FACTS = {
    "engine_version": re.compile(r"(?:vLLM (?:API server )?version|LLM engine \(v)\s*v?([\d.]+\w*)"),
    "model": re.compile(r"\bmodel(?:_tag)?(?:=|': )'([^']+)'"),
    "tp": re.compile(r"tensor_parallel_size(?:=|': )(\d+)"),
    "pp": re.compile(r"pipeline_parallel_size(?:=|': )(\d+)"),
    "kv": re.compile(r"kv_cache_dtype(?:=|': ')([\w]+)"),
    "precision": re.compile(r"\bquantization(?:=|': ')([\w-]+)"),
    "max_model_len": re.compile(
        r"Maximum concurrency for ([\d,]+) tokens|max_seq_len=(\d+)|max_model_len(?:=|': )(\d+)"
    ),
    "memory_fraction": re.compile(r"gpu_memory_utilization(?:=|': )([\d.]+)"),
    "max_num_batched_tokens": re.compile(r"max_num_batched_tokens(?:=|': )(\d+)"),
    "max_num_seqs": re.compile(r"max_num_seqs(?:=|': )(\d+)"),
}
_SGLANG_VALUES = {
    "weights": (re.compile(rf"Load weight end\..*mem usage={_NUMBER} GB"), GIB),
    "kv_tokens": (re.compile(rf"max_total_num_tokens={_NUMBER}|#tokens: {_NUMBER}"), 1.0),
}
_SGLANG_FACTS = {
    "model": re.compile(r"model_path='([^']+)'"),
    "tp": re.compile(r"\btp_size=(\d+)"),
    "ep": re.compile(r"\bep_size=(\d+)"),
    "pp": re.compile(r"\bpp_size=(\d+)"),
    "kv": re.compile(r"kv_cache_dtype='(\w+)'"),
    "precision": re.compile(r"\bquantization='([\w-]+)'"),
    "max_num_batched_tokens": re.compile(r"chunked_prefill_size=(\d+)"),
    "max_num_seqs": re.compile(r"max_running_requests=(\d+)"),
    "memory_fraction": re.compile(r"mem_fraction_static=([\d.]+)"),
    "max_model_len": re.compile(r"context_len=(\d+)"),
}


_START = {
    "profile, cache, warm-up and graphs": re.compile(rf"init engine \(.*?\) took {_NUMBER} s"),
    "graphs alone": re.compile(rf"(?:Graph capturing finished in|Capture cuda graph end\. Time elapsed:) {_NUMBER} s"),
}
"""What follows the weights, in seconds: vLLM's line (vllm-project/vllm#20264), else the graphs of vLLM or SGLang
(sgl-project/sglang#8538)."""


def engine_start(path: Path) -> tuple[float, str]:
    """Seconds that an engine took to start behind its weights, by its log, and what they are of. Raises
    ``InputFileError`` where no line says so."""
    text = read_text(path, LARGEST_SPEC)
    for what, pattern in _START.items():
        if match := pattern.search(text):
            return _number(match), what
    raise InputFileError(
        f"{path} does not say how long the engine took to start",
        because="no line 'init engine (...) took ... seconds', 'Graph capturing finished in ... secs' or "
        "'Capture cuda graph end. Time elapsed: ... s'",
        hint="--engine-start 45s",
    )


def is_startup_log(text: str) -> bool:
    return any(pattern.search(text) for values in (_VLLM_VALUES, _SGLANG_VALUES) for pattern, _ in values.values())


def parse_log(text: str) -> Startup:
    """What a log says. Raises ``ValueError`` when none of the known lines is in it."""
    for engine, values, facts in (("sglang", _SGLANG_VALUES, _SGLANG_FACTS), ("vllm", _VLLM_VALUES, _VLLM_FACTS)):
        logged = {name: _number(match) * scale for name, (p, scale) in values.items() if (match := p.search(text))}
        if logged:
            found = {name: _group(match) for name, p in facts.items() if (match := p.search(text))}
            return Startup(engine=engine, facts=found | {"engine": engine}, logged=logged)
    raise ValueError("no line about weights or cache in it")


def _group(match: re.Match[str]) -> str:
    text = next(group for group in match.groups() if group is not None).replace(",", "")
    return "" if text in ("None", "auto") else text


def _number(match: re.Match[str]) -> float:
    return float(_group(match))


def read_startup_log(path: Path, supplied: Mapping[str, str]) -> tuple[Run, Startup]:
    """A log and the run it belongs to; ``supplied`` fills what the log does not say.

    Raises ``InputFileError`` for a log without its lines, or without what is needed to predict them.
    """
    try:
        announce(path)
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputFileError(f"cannot read {path}", because=error.strerror or str(error)) from None
    try:
        startup = parse_log(text)
        facts = {"isl": "1", "osl": "1", "concurrency": "1", "tp": "1", "precision": "native"}
        facts |= {name: value for name, value in {**supplied, **startup.facts}.items() if value}
        run, _ = interpret(facts)
    except (Unusable, ValueError) as error:
        raise InputFileError(f"{path} cannot be checked", because=str(error), hint="--gpu, --model") from None
    return run, startup


def compare_with_log(run: Run, startup: Startup) -> list[Line]:
    """Predicted against logged, for each quantity in the log."""
    deployment, _ = deployment_of(run)
    deployment = with_flags(deployment, row_flags(run))
    length = run.context or deployment.model.max_context
    footprint = Footprint(deployment=deployment, batch=1.0, prompt=1.0, context=float(length or 4096))
    predicted: dict[str, tuple[str, float]] = {
        "weights": ("bytes", footprint.weights),
        "kv_bytes": ("bytes", footprint.kv_pool),
    }
    if length:
        tokens = footprint.cache_tokens(length)
        predicted["kv_tokens"] = ("tokens", float(tokens))
        predicted["blocks"] = ("blocks", tokens / deployment.engine.defaults.block_size)
        predicted["concurrency"] = ("requests", footprint.concurrency(length))
    return [
        Line(name=name, unit=predicted[name][0], logged=value, predicted=predicted[name][1])
        for name, value in startup.logged.items()
        if name in predicted and value
    ]
