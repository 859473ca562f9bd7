"""A public run of 5,000 requests of Mooncake's trace of tools and agents on four B200, with and without a host tier.

The run is told, its trace is not on file: of its 23,608 requests 167 were read, of two places of a copy of a thousand
(hiverge/dynamo, ``mooncake_trace.jsonl``, from 1,178 and 1,270 s on). Half are chats, the others calls whose prompts
begin with one of two texts, of 12 and of 5 blocks. So there stand in for it the first chats of Mooncake's
conversations, which is on file, at their own times, and between them the calls that were read, in their order and
again. There are as many chats as make the prompt tokens that the run states; nothing else is taken from it.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate, cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import config_root
from inferplan.serving.flags import Flags, rules_of, with_flags
from inferplan.serving.options import Options
from inferplan.serving.result import SimulationResult
from inferplan.serving.simulator import simulate
from inferplan.serving.techniques.tiers import CacheTier
from inferplan.traffic.requests import Requests
from inferplan.traffic.traces import MOONCAKE_BLOCK, read_trace
from inferplan.work.parallel import Parallelism
from tools.accuracy.parts.rows import Part, PartRow

COUNT, BLOCK = 5000, 32
DEVICE, HOST = 8192 * BLOCK, 16384 * BLOCK
"""Tokens that each engine keeps in each place."""
TOKEN = 62 * 2 * 4 * 128 * 2.0
"""Bytes of a token on each of an engine's devices: 62 layers, 4 of 8 heads of 128, two bytes, as the source has it."""
LINK = 32e9
"""Bytes a second of an engine's two devices to the host, as the source takes them."""
SHARED = {46: 12, 74: 5}
"""Blocks that all calls of a kind begin with, by the first of them."""
OWN = 10_000_000
"""From here on names of blocks that no other prompt has."""


def replay_part(shared: Path) -> Part:
    """Hits and times of both arms."""
    run = _told("mooncake_run")
    measured: dict[str, dict[str, tuple[float, str]]] = defaultdict(dict)
    for row in run:
        measured[row["arm"]][row["quantity"]] = float(row["value"]), row["unit"]
    sent = stand_in(shared, int(measured.pop("any")["prompt tokens"][0]))
    rows = [
        PartRow(
            source="aisimulate replay-evidence",
            case=f"MiniMax-M2.5, vLLM 0.25.1, 4 x B200, {arm_said}: {quantity}",
            measured=value,
            predicted=predicted[quantity],
            unit=unit,
        )
        for arm, arm_said in (("device", "cache on the device"), ("host", "device and host"))
        for predicted in [_figures(_served(sent, host=arm == "host"))]
        for quantity, (value, unit) in measured[arm].items()
    ]
    return Part(name="A trace replayed with a host tier", rows=rows)


def stand_in(shared: Path, tokens: int) -> Requests:
    """Requests with so many prompt tokens in all, or as near as a whole number of chats comes."""
    calls = [(int(row["first_block"]), int(row["prompt"]), int(row["output"])) for row in _told("mooncake_calls")]
    with (shared / "traces" / "mooncake_conversation.jsonl").open(encoding="utf-8") as file:
        chats = [json.loads(line) for line in islice(file, COUNT)]
    of_chats = [0, *accumulate(chat["input_length"] for chat in chats)]
    of_calls = [0, *accumulate(prompt for _, prompt, _ in islice(cycle(calls), COUNT))]
    count = min(range(1, COUNT), key=lambda count: abs(of_chats[count] + of_calls[COUNT - count] - tokens))
    lines = [*chats[:count], *_calls(calls, COUNT - count, chats[count - 1]["timestamp"])]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        return read_trace(path)


def _calls(calls: list[tuple[int, int, int]], count: int, span: int) -> Iterator[dict[str, Any]]:
    """So many calls, evenly over so many milliseconds, in the bins of Mooncake's traces. Names of the two texts are
    above those of the chats."""
    own = OWN
    for place, (first, prompt, output) in enumerate(islice(cycle(calls), count)):
        blocks, texts = -(-prompt // MOONCAKE_BLOCK), SHARED[first]
        names = [OWN // 10 + first + block for block in range(texts)] + list(range(own, own + blocks - texts))
        own += blocks
        yield {
            "timestamp": span * place // count // 3000 * 3000,
            "input_length": prompt,
            "output_length": output,
            "hash_ids": names,
        }


def _served(sent: Requests, host: bool) -> SimulationResult:
    parallel = Parallelism(tp=2, dp=2)
    served = assemble(
        Request(model="minimax-m2.5", gpu="b200-hgx", roles=(("kv", "bf16"),), engine="vllm@0.25", parallel=parallel)
    )
    half, whole = (
        rules_of(with_flags(served, flags), flags, 9000.0, 9000.0).capacity
        for flags in (Flags(gpu_memory_utilization=share, block_size=BLOCK) for share in (0.5, 1.0))
    )
    share = 0.5 + 0.5 * (DEVICE - half) / (whole - half)
    flags = Flags(gpu_memory_utilization=share, block_size=BLOCK)
    tier = CacheTier(name="host", capacity=HOST * TOKEN, bandwidth=LINK / parallel.tp)
    return simulate(served, sent, flags, Options(tiers=(tier,) if host else ()))


def _figures(run: SimulationResult) -> dict[str, float]:
    """As the source names them."""
    tiers = {tier["name"]: 100 * tier["hit_rate"] for tier in run.to_dict()["cache_tiers"] or ()}
    return {
        "found on the device": tiers.get("device", 100 * run.hit_rate),
        "found on the host": tiers.get("host", 0.0),
        "found": 100 * run.hit_rate,
        "mean TTFT": float(run.ttft.mean()),
        "mean TPOT": 1e3 * float(run.tpot.mean()),
    }


def _told(name: str) -> list[dict[str, str]]:
    with (config_root().parent / "tests" / "benchmarks" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
