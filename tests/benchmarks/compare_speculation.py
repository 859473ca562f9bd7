"""Published speed-ups of drafts against predicted ones: ``python -m tests.benchmarks.compare_speculation``.

Each row states its hardware, its load and how many drafts were accepted; where it does not say the last, the length is
that of ``configs/acceptance.yaml``. A speed-up is the time of a token without drafts over that with them. Where rates
are published too, so is what a round of drafts and its verification add to a step: 2 requests a rank over its tokens/s.
"""

from __future__ import annotations

from typing import NamedTuple

from inferplan.catalog.acceptance import acceptance_for
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.drafts import draft_alone
from inferplan.serving.techniques.speculation import Speculation, speculate
from inferplan.work.parallel import Parallelism


class Published(NamedTuple):
    """A measured speed-up. batch: requests of a replica; context: tokens behind each, in the middle of the output."""

    source: str
    request: Request
    tokens: int
    length: float | None
    batch: float
    context: float
    speedup: float
    added: float | None = None
    """Seconds that a step with drafts takes longer."""


_TWO = 2.0
"""Requests a rank of lmsys's first case study."""
_LMSYS = Request(model="deepseek-v3", gpu="h200-sxm", engine="sglang", parallel=Parallelism(tp=1, dp=16, ep=16))
_TRTLLM = Request(model="deepseek-r1", gpu="b200-sxm", engine="trtllm", quant="nvfp4", parallel=Parallelism(tp=8, ep=2))
ROWS = (
    Published(
        "lmsys.org 2025-07-17, 51.0 to 81.5 tokens/s",
        _LMSYS,
        2,
        2.18,
        32.0,
        65536.0 + 2048.0,
        81.5 / 51.0,
        _TWO * (2.18 / 81.5 - 1 / 51.0),
    ),
    Published(
        "lmsys.org 2025-07-17, 51.0 to 82.0 tokens/s",
        _LMSYS,
        3,
        2.44,
        32.0,
        65536.0 + 2048.0,
        82.0 / 51.0,
        _TWO * (2.44 / 82.0 - 1 / 51.0),
    ),
    Published("TensorRT-LLM blog 2, MTP 3, length not stated", _TRTLLM, 3, None, 1.0, 1024.0 + 1024.0, 2.16),
)


def predicted(row: Published) -> tuple[float, float, float]:
    """The acceptance length taken, the speed-up with it, and seconds that drafts and verification add to a step."""
    length = row.length or acceptance_for(row.request.model, "mtp", row.tokens).length
    draft = draft_alone(row.request, "mtp").over(row.request.parallel).whole
    speculation = Speculation.of_length(length, row.tokens, draft=draft)
    gain = speculate(assemble(row.request), speculation, row.batch, row.context)
    return length, float(gain.speedup), float(gain.verify + gain.draft - gain.plain)


def main() -> None:
    print(
        f"{'published':46}{'drafts':>7}{'length':>8}{'measured':>10}{'predicted':>11}{'off':>7}{'added to a step':>26}"
    )
    for row in ROWS:
        length, found, added = predicted(row)
        figures = f"{row.tokens:7d}{length:8.2f}{row.speedup:10.2f}{found:11.2f}{found / row.speedup - 1:7.0%}"
        measured = "" if row.added is None else f"{row.added * 1e3:.1f}, "
        print(f"{row.source:46}{figures}{measured + f'predicted {added * 1e3:.1f} ms':>26}")


if __name__ == "__main__":
    main()
