"""Published large-scale runs against prediction: ``python -m tests.benchmarks.compare_public_runs``.

Tokens a second and GPU of one phase, and what overlapping two half batches gained. Prints the page's tables
(docs/formulas/step.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from inferplan.catalog.assemble import Request, assemble
from inferplan.devices.engine import EngineFlags
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.phase import Phase, decode_cycle, prompt_drain
from inferplan.work.parallel import Parallelism


@dataclass(frozen=True, kw_only=True)
class PublicRun:
    """One published figure of SGLang with DeepEP. batch: sequences a GPU that decode behind ``prompt`` tokens, or
    prompts of so many tokens a GPU that are computed together."""

    name: str
    source: str
    model: str = "deepseek-v3"
    gpu: str = "h100-sxm"
    ranks: int
    redundant: int = 32
    prefill: bool = False
    batch: float
    prompt: float
    overlap: bool = True
    skew: float | None = None
    measured: float
    """Tokens a second and GPU."""

    def deployment(self) -> Deployment:
        """As it was run."""
        return assemble(
            Request(
                model=self.model,
                gpu=self.gpu,
                engine="sglang",
                parallel=Parallelism(dp=self.ranks, ep=self.ranks, redundant=self.redundant),
                flags=EngineFlags(two_batch_overlap=self.overlap),
                expert_skew=self.skew,
            )
        )

    def phase(self) -> Phase:
        """The step of the whole replica."""
        price = prompt_drain if self.prefill else decode_cycle
        return price(self.deployment(), self.batch * self.ranks, self.prompt)

    def predicted(self) -> float:
        """Tokens a second and GPU."""
        return self.batch * (self.prompt if self.prefill else 1.0) / float(self.phase().time)

    def gain(self) -> float:
        """How many times as fast two half batches make the step."""
        whole, halves = (replace(self, overlap=overlap).phase() for overlap in (False, True))
        return float(whole.time) / float(halves.time)


H100 = "lmsys.org/blog/2025-05-05-large-scale-ep"
K2 = "lmsys.org/blog/2025-07-17-k2-large-scale-ep; flags: sgl-project/ome config/runtimes/srt/kimi-k2-pd-rt.yaml"
RACK = (
    "lmsys.org/blog/2025-06-16-gb200-part-1; --cuda-graph-bs 768 of the published command (ai-dynamo, SGLang on GB200)"
)
RACK_2 = "lmsys.org/blog/2025-09-25-gb200-part-2, bf16 attention and fp8 experts"
DECODE = PublicRun(
    name="DeepSeek-V3, decode, 72 H100", source=H100, ranks=72, batch=256, prompt=2000, measured=22_282 / 8
)
PREFILL = PublicRun(
    name="prefill, 32 H100, prompts of 1,024",
    source=H100,
    ranks=32,
    prefill=True,
    batch=16,
    prompt=1024,
    measured=57_674 / 8,
)
RUNS = (
    DECODE,
    PREFILL,
    replace(PREFILL, name="prompts of 2,048", batch=8, prompt=2048, measured=54_543 / 8),
    replace(PREFILL, name="prompts of 4,096", batch=4, prompt=4096, measured=50_302 / 8),
    replace(PREFILL, name="prompts of 4,096, experts at random", batch=4, prompt=4096, skew=0.0, measured=59_337 / 8),
    PublicRun(
        name="Kimi K2, decode, 96 H200",
        source=K2,
        model="kimi-k2",
        gpu="h200-sxm",
        ranks=96,
        redundant=96,
        batch=480,
        prompt=2000,
        measured=24_000 / 8,
    ),
    PublicRun(
        name="Kimi K2, prefill, 32 H200",
        source=K2 + " (experts balanced without copies, here with one per rank)",
        model="kimi-k2",
        gpu="h200-sxm",
        ranks=32,
        prefill=True,
        batch=8,
        prompt=2048,
        measured=56_000 / 8,
    ),
    PublicRun(
        name="DeepSeek-V3, decode, 48 GB200",
        source=RACK,
        gpu="gb200",
        ranks=48,
        batch=768,
        prompt=2000,
        overlap=False,
        measured=7_583,
    ),
    PublicRun(
        name="the same, three months later",
        source=RACK_2,
        gpu="gb200",
        ranks=48,
        batch=768,
        prompt=2000,
        overlap=False,
        measured=9_087,
    ),
    PublicRun(
        name="prefill, 4 GB200",
        source=RACK_2,
        gpu="gb200",
        ranks=4,
        prefill=True,
        batch=8,
        prompt=2000,
        overlap=False,
        measured=18_471,
    ),
)
GAINS = (
    ("decode of 32 sequences a GPU", replace(DECODE, batch=32), (0.73, 0.73)),
    ("of 256", DECODE, (1.255, 1.255)),
    ("prefill of 8,192 tokens a GPU", replace(PREFILL, batch=2, prompt=4096), (1.27, 1.35)),
)
"""What the overlap gained (:data:`H100`), least and most; none between 64 and 128 sequences."""


def _report() -> None:
    for run in RUNS:
        value, measured = run.predicted(), run.measured
        print(f"| {run.name} | {measured:,.0f} | {value:,.0f} | {value / measured - 1:+.0%} | {run.source} |")
    for name, run, (least, most) in GAINS:
        print(f"| {name} | {least - 1:+.0%} to {most - 1:+.0%} | {run.gain() - 1:+.0%} |")


if __name__ == "__main__":
    _report()
