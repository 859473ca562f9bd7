"""Records of single iterations, one JSON object a line: forward-pass metrics, and TensorRT-LLM's iteration statistics.

Forward-pass metrics: ``ScheduledRequestMetrics`` and ``ForwardPassMetrics`` of ai-dynamo/dynamo 327e70f,
``components/src/dynamo/common/forward_pass_metrics.py`` (vLLM), and of sgl-project/sglang 48ccb9a,
``python/sglang/srt/observability/forward_pass_metrics.py``: one a pass, all zeros when idle. ``sum_prefill_tokens`` are
the tokens that the pass computes, ``sum_prefill_kv_tokens`` those that it reads behind them, ``sum_decode_kv_tokens``
prompt and answer so far of all sequences that decode.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from inferplan.errors import InputFileError
from inferplan.files import parse_json
from inferplan.learning.observed import Recorded, StepLoad, figure
from inferplan.units import MOST

KIND = "iteration records"
_CUT = "records that end before their end"
_FEW = 3
"""Cut records of a short file that are no reason to doubt it; of a long one a hundredth."""
_FIELDS = (
    "num_prefill_requests",
    "sum_prefill_tokens",
    "sum_prefill_kv_tokens",
    "num_decode_requests",
    "sum_decode_kv_tokens",
)


def matches(text: str) -> bool:
    """Whether a text is JSON objects of iterations."""
    return text[:1] in "[{" and any(name in text[:20_000] for name in ("_decode_requests", "iterLatencyMS"))


def read(text: str, where: str) -> Recorded:
    """The steps of forward-pass metrics, or of TensorRT-LLM's statistics.

    A record that ends before its end is counted, as a server that still writes or was killed leaves one. Raises
    ``InputFileError`` with the number of the record for a field that is missing or is no number, and for records of
    several ranks of data parallelism.
    """
    found, ranks = Recorded.of(KIND), set[float]()
    for number, line in enumerate(_objects(text, where, found), start=1):
        place, entry = f"{where}: record {number}", _payload(line)
        if "iterLatencyMS" in entry:
            found.engine = "trtllm"
            _of_statistics(entry, place, found)
            continue
        ranks.add(_number(entry, "dp_rank", place) if entry.get("dp_rank") is not None else 0.0)
        scheduled = entry.get("scheduled_requests", entry)
        if not isinstance(scheduled, dict):
            raise InputFileError(f"{place}: scheduled_requests is not an object")
        prompts, new, past, decodes, context = (_number(scheduled, name, place) for name in _FIELDS)
        seconds = _seconds(entry, place)
        if not (prompts and new) and not decodes:
            found.skip("idle records")
            continue
        found.keep(seconds, [(1.0, _load((prompts, new, past), (decodes, context)))], place)
    if len(ranks) > 1:
        raise InputFileError(
            f"{where} holds records of {len(ranks)} ranks of data parallelism",
            because="ranks that share experts wait for each other, so that one rank's step is not its own",
            hint="the records of a server with --dp 1",
        )
    return found


def _payload(entry: dict[str, Any]) -> dict[str, Any]:
    """The metrics in a line of Dynamo's trace (``dynamo.fpm.trace.v1``), or the line itself."""
    event = entry.get("event")
    found = event.get("fpm") if isinstance(event, dict) else entry
    return found if isinstance(found, dict) else entry


def _load(prompts: tuple[float, float, float], decodes: tuple[float, float]) -> StepLoad:
    """A step from sums over its prompts (how many, new tokens, tokens behind them) and over its decodes."""
    number, new, past = prompts
    if not (number and new):
        return StepLoad(decodes=decodes[0], context=decodes[1] / decodes[0])
    return StepLoad(number, new / number, past / number, decodes[0], decodes[1] / decodes[0] if decodes[0] else 0.0)


def _seconds(entry: Mapping[str, Any], place: str) -> float:
    if "duration_ms" in entry:
        return _number(entry, "duration_ms", place, whole=False) / 1e3
    return _number(entry, "wall_time", place, whole=False)


def _of_statistics(entry: Mapping[str, Any], place: str, found: Recorded) -> None:
    """A record of TensorRT-LLM's ``/metrics`` (``IterationStats``): time and requests of one iteration.

    Blocks of the cache are those of all requests, so that only a step that decodes alone says how many tokens are
    behind each. Rounding up to a block adds half of one to each.
    """
    batch, cache = entry.get("inflightBatchingStats"), entry.get("kvCacheStats")
    if not isinstance(batch, dict) or not isinstance(cache, dict):
        found.skip("statistics without inflightBatchingStats and kvCacheStats")
        return
    decodes = _number(batch, "numGenRequests", place)
    if _number(batch, "numContextRequests", place) or not decodes:
        found.skip("statistics of iterations with prompts: the context of their decodes is not stated")
        return
    block = _number(cache, "tokensPerBlock", place)
    held = _number(cache, "usedNumBlocks", place) * block / decodes
    load = StepLoad(decodes=decodes, context=max(held - block / 2, 0.0))
    found.keep(_number(entry, "iterLatencyMS", place, whole=False) / 1e3, [(1.0, load)], place)


def _number(entry: Mapping[str, Any], name: str, place: str, whole: bool = True) -> float:
    value = figure(None if isinstance(entry.get(name), str) else entry.get(name), whole)
    if value is None:
        what = f"{'whole number' if whole else 'number'} of 0 to {MOST:.0e}"
        said = "is missing" if name not in entry else f"is {str(entry[name])[:40]!r}, and no {what}"
        raise InputFileError(f"{place}: {name} {said}", hint="docs/learn.md lists the fields")
    return value


def _objects(text: str, where: str, found: Recorded) -> Iterator[dict[str, Any]]:
    """JSON objects one after another, or arrays of them.

    A line that is cut, as a server leaves one that is killed while it writes, is counted: it may be the last, or have
    the next object in it or behind it. Of more than a few the first is an error.
    """
    at = whole = 0
    while at < len(text):
        if text[at] in " \t\r\n,":
            at += 1
            continue
        try:
            value, end = parse_json(text, where, InputFileError, at)
        except InputFileError:
            end = _next_object(text, at)
            if at == 0 or end < 0 or found.passed_over.get(_CUT, 0) >= max(_FEW, whole // 100):
                raise
            found.skip(_CUT)
            at = end
            continue
        at, whole = end, whole + 1
        for one in value if isinstance(value, list) else [value]:
            if not isinstance(one, dict):
                raise InputFileError(f"{where} holds JSON that is not an object", hint="one object a line")
            yield one


def _next_object(text: str, at: int) -> int:
    """Where the line behind that of an object begins, if it is one too or there is none; else -1."""
    end = text.find("\n", at)
    end = len(text) if end < 0 else end
    return end if text[at] == "{" and text[end : end + 1_000].lstrip()[:1] in ("{", "") else -1
