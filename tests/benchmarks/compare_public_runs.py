"""Published large-scale runs against prediction: ``python -m tests.benchmarks.compare_public_runs``.

Tokens a second of a node of 8 GPUs. The engine of these runs overlaps two half batches; they are priced with and
without that: kernels that share a device with others slow down, so the truth is expected between the two.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferplan.catalog.assemble import Request, assemble
from inferplan.devices.engine import EngineFlags
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.phase import decode_cycle, prefill_phase
from inferplan.work.parallel import Parallelism

NODE = 8


@dataclass(frozen=True, kw_only=True)
class PublicRun:
    """One published figure. batch: sequences a GPU that decode, or prompts a GPU that are computed together."""

    name: str
    source: str
    ranks: int
    redundant: int
    prefill: bool
    batch: float
    prompt: float
    measured: float
    """Tokens a second and node."""


LMSYS = "lmsys.org/blog/2025-05-05-large-scale-ep: DeepSeek-V3 on 96 H100 under SGLang, DeepEP, two-batch overlap"
RUNS = (
    PublicRun(
        name="decode, EP72, 256 sequences a GPU, 2,000 tokens",
        source=LMSYS,
        ranks=72,
        redundant=32,
        prefill=False,
        batch=256,
        prompt=2000,
        measured=22_300,
    ),
    PublicRun(
        name="prefill, EP32, 16,000 tokens a GPU, prompts of 2,000",
        source=LMSYS,
        ranks=32,
        redundant=32,
        prefill=True,
        batch=8,
        prompt=2000,
        measured=52_300,
    ),
)


def predicted(run: PublicRun, overlapped: bool) -> float:
    """Tokens a second and node."""
    deployment = assemble(
        Request(
            model="deepseek-v3",
            gpu="h100-sxm",
            engine="sglang",
            parallel=Parallelism(dp=run.ranks, ep=run.ranks, redundant=run.redundant),
            flags=EngineFlags(two_batch_overlap=overlapped),
        )
    )
    sequences, nodes = run.batch * run.ranks, run.ranks / NODE
    if run.prefill:
        seconds = prefill_phase(deployment, StaticLoad(batch=sequences, prompt=run.prompt, output=1.0)).time
        return sequences * run.prompt / float(seconds) / nodes
    return sequences / float(decode_cycle(deployment, sequences, run.prompt).time) / nodes


def _report() -> None:
    for run in RUNS:
        apart, together = predicted(run, False), predicted(run, True)
        print(f"{run.name}: measured {run.measured:,.0f} tokens/s a node ({run.source})")
        for name, value in (("one batch", apart), ("two half batches", together)):
            print(f"    {name:17s} {value:10,.0f}  {value / run.measured - 1:+.0%}")


if __name__ == "__main__":
    _report()
