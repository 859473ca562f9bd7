"""What serving techniques do to a static batch, and the steady state beside it: the serving part of an estimate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from inferplan.errors import UsageError
from inferplan.estimate.batch import Estimate
from inferplan.reports.simulation import steady_report
from inferplan.serving.steady import UserLoad, steady_state
from inferplan.serving.techniques.chunked_prefill import chunked_prefill
from inferplan.serving.techniques.offload import HostTier, load_time, reload_gain
from inferplan.serving.techniques.prefix_caching import cached_prefill, prefix_gain
from inferplan.serving.techniques.speculation import PLAIN, Speculation, break_even, speculate
from inferplan.table import Table
from inferplan.units import format_time


@dataclass(frozen=True, kw_only=True, eq=False)
class Serving:
    """What is asked beside the batch. hit_rate: share of the prompt that is cached; users: of the steady state."""

    speculation: Speculation = PLAIN
    hit_rate: float = 0.0
    chunk: int | None = None
    host: HostTier | None = None
    users: int | None = None


def serving_summary(result: Estimate, asked: Serving) -> tuple[dict[str, Any], list[Table]]:
    """Records by technique, for JSON, and tables. Raises ``UsageError`` for a hit rate outside [0, 1)."""
    if not 0 <= asked.hit_rate < 1:
        raise UsageError(f"--prefix-hit-rate is in [0, 1), not {asked.hit_rate:g}")
    record: dict[str, Any] = {}
    rows: list[list[str]] = []
    for part in (_speculation, _prefix, _chunks, _offload):
        name, values, lines = part(result, asked)
        if values:
            record[name] = values
            rows += lines
    tables = [Table(title="Techniques", columns=("", ""), rows=rows)] if rows else []
    if asked.users:
        load = UserLoad(
            concurrency=float(asked.users),
            prompt=result.load.prompt,
            output=result.load.output,
            hit_rate=asked.hit_rate,
        )
        state = steady_state(result.deployment, load, speculation=asked.speculation)
        record["steady_state"] = state.to_dict()
        tables.append(steady_report(state))
    return record, tables


_Part = tuple[str, dict[str, Any], list[list[str]]]


def _speculation(result: Estimate, asked: Serving) -> _Part:
    if asked.speculation is PLAIN:
        return "speculation", {}, []
    load = result.load
    context = float(np.max(load.prompt)) + float(np.max(load.output)) / 2
    gain = speculate(result.deployment, asked.speculation, load.batch, context)
    tpot, speedup = float(np.max(gain.tpot)), float(np.max(gain.speedup))
    losing = break_even(result.deployment, asked.speculation, context)
    values = {
        "tokens_per_step": gain.tokens,
        "tpot_s": tpot,
        "speedup": speedup,
        "loses_from_batch": losing,
    }
    lines = [
        ["speculative decoding, TPOT", f"{format_time(tpot)} ({speedup:.3g} times as fast)"],
        ["it loses from batch", "none up to 4,096" if losing is None else f"{losing:,}"],
    ]
    return "speculation", values, lines


def _prefix(result: Estimate, asked: Serving) -> _Part:
    if not asked.hit_rate:
        return "prefix_caching", {}, []
    load = result.load
    time = float(np.max(cached_prefill(result.deployment, load.batch, load.prompt, asked.hit_rate)))
    gain = float(np.max(prefix_gain(result.deployment, load.batch, load.prompt, asked.hit_rate)))
    line = [f"prefix caching, {asked.hit_rate:.0%} found: TTFT", f"{format_time(time)} ({gain:.3g} times as fast)"]
    return "prefix_caching", {"ttft_s": time, "speedup": gain}, [line]


def _chunks(result: Estimate, asked: Serving) -> _Part:
    if not asked.chunk:
        return "chunked_prefill", {}, []
    prompt, batch = int(np.max(result.load.prompt)), int(np.max(result.load.batch))
    cut = chunked_prefill(result.deployment, prompt, asked.chunk, batch - 1, float(prompt))
    values = {"ttft_s": cut.total, "chunks": cut.steps, "longest_step_s": cut.longest_gap, "cost": cut.cost}
    line = [
        f"one prompt in {cut.steps} chunks beside {batch - 1} decodes: TTFT",
        f"{format_time(cut.total)}, longest step {format_time(cut.longest_gap)}",
    ]
    return "chunked_prefill", values, [line]


def _offload(result: Estimate, asked: Serving) -> _Part:
    if asked.host is None:
        return "kv_offload", {}, []
    time = float(np.max(load_time(result.deployment, asked.host, result.load.prompt)))
    gain = float(np.max(reload_gain(result.deployment, asked.host, result.load.prompt)))
    line = ["prompt's cache back from the host", f"{format_time(time)} (computing it takes {gain:.3g} times as long)"]
    return "kv_offload", {"load_s": time, "gain": gain}, [line]
