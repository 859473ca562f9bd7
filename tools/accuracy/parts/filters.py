"""Kernels that keep the tokens of top-k and top-p, and what a service loses by them."""

from __future__ import annotations

from pathlib import Path

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.filters import filter_constants
from inferplan.estimate.batch import Estimate
from inferplan.estimate.load import StaticLoad
from tools.accuracy.parts.rows import Part, PartRow
from tools.fitting.filters import Timed, timed

WITHOUT, SORTED, FUSED = 47.40, 40.20, 47.15
"""Requests per second of vllm 11394: without top-p, with it by PyTorch's sort, and by FlashInfer."""


def filters_part(shared: Path) -> Part:
    """Each row of ``filters.csv``, and the arms of one service."""
    return Part(name="Top-k and top-p", rows=[*map(_row, timed()), *_services()])


def _row(row: Timed) -> PartRow:
    """One timed kernel. What samples from given probabilities is without the softmax that its price has."""
    fit = filter_constants().constants["elementwise"][row.label]
    seconds = row.priced(fit.overhead, fit.terms["swept"], fit.memory)
    return PartRow(
        source=row.source,
        case=f"{row.kernel}, {row.filters}, {row.gpu}, {row.rows:g} x {row.vocabulary:,} logits",
        measured=1e3 * row.seconds,
        predicted=1e3 * seconds,
        unit="ms",
        fitted=row.fit,
    )


def _services() -> list[PartRow]:
    """Throughput with top-p over that without, of steps of 256 sequences of a model of 8B on an H100."""
    found = []
    for engine, said, measured in (("vllm@0.12", "PyTorch's sort", SORTED), ("vllm@0.33", "FlashInfer", FUSED)):
        load = StaticLoad(batch=256.0, prompt=256.0, output=256.0)
        both = [
            float(Estimate(deployment=assemble(request), load=load).tpot)
            for request in (
                Request(model="llama-3.1-8b", gpu="h100-sxm", engine=engine, sampling=sampling)
                for sampling in (None, "top-p")
            )
        ]
        found.append(
            PartRow(
                source="vllm 11394",
                case=f"vLLM, ShareGPT; as Llama 3.1 8B, H100, 256 sequences: top-p by {said} over none",
                measured=measured / WITHOUT,
                predicted=both[0] / both[1],
                unit="throughput",
            )
        )
    return found
