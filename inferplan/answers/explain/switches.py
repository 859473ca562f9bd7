"""Where a time may leap or fall by one token, sequence or user more, in words: what ``explain`` prints as ``switch``.

docs/continuity.md lists them; ``tests/benchmarks/bench_continuity.py`` holds every break of a drawn deployment against
them.
"""

from __future__ import annotations

from collections.abc import Iterator

from inferplan.devices.constants import Fit
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.roofline import OWN_LIMIT, TILE
from inferplan.models.layers import LayerSpec
from inferplan.work.ops import Attention, Collective, Mask, Matmul, Op, Scan, Switched, at_width
from inferplan.work.step import WIDE

STAIRS: dict[str, tuple[tuple[type[Op], ...], str]] = {
    "padding": ((Matmul,), f"every {TILE} rows: one more tile (padding)"),
    "depth": ((Scan, Attention), f"every {TILE} tokens of a sequence: one more serial step (depth)"),
    "blocks": ((Attention,), f"every {TILE} new tokens of a sequence: one more thread block per head (blocks)"),
    "windowed": ((Attention,), f"every {TILE} new tokens of a sequence: one more thread block per head (windowed)"),
    "fallback": ((Collective,), f"messages of more than {OWN_LIMIT / 2**20:g} MiB: the collective library (fallback)"),
}
"""Terms of the roofline that count whole things: of which operators, and the words."""


def of_operator(op: Op, fit: Fit | None, deployment: Deployment) -> Iterator[str]:
    """Where another kernel takes over from that of ``op``, or another form, tile or chunk begins."""
    if isinstance(op, Switched):
        few, many = at_width(op, 1.0).kernel, at_width(op, WIDE + 1.0).kernel
        if few != many:
            yield f"up to {WIDE} new tokens per sequence {few}, beyond {many}"
    if isinstance(op, Attention) and any(part.kind == "mla" for part in _parts(deployment)):
        yield (
            f"up to {WIDE} new tokens per sequence attend to the cached latents; more to those or to keys and values "
            "of every head, whichever takes less time"
        )
        for most in sorted(_chosen(deployment)):
            yield f"prompts of up to {most} tokens in all choose every one: dense, beyond mla.sparse"
    mask = getattr(op, "mask", None)
    if mask is not None and mask.kind in ("chunk", "blocks"):
        yield f"every {mask.size} positions a {mask.kind.removesuffix('s')} starts again, with fewer to look at"
    rules = deployment.engine.exchange.on(deployment.hardware, deployment.parallel.expert_ranks)
    if op.name in ("ffn.dispatch", "ffn.combine") and rules.decode != rules.prefill:
        yield f"up to {WIDE} new tokens per sequence {rules.decode}, beyond {rules.prefill}"
    if isinstance(op, Attention) and fit is not None and "padding" in fit.terms and (op.wide or op.shared_value):
        yield f"every {64 if op.shared_value else TILE} query rows of a sequence: one more tile (padding)"
    for term, (kinds, words) in STAIRS.items():
        if fit is not None and term in fit.terms and isinstance(op, kinds):
            yield words


def of_first_token(deployment: Deployment, budget: int) -> Iterator[str]:
    """Where one prompt token more makes the first token of an idle server leap. budget: tokens of a step."""
    yield from _launched(deployment)
    if deployment.engine.defaults.scheduler.chunked_prefill:
        yield f"every {budget} new tokens: one more step (max_num_batched_tokens)"
    for size in sorted({mask.size for mask in _masks(deployment) if mask.kind == "chunk"}):
        yield f"every {size} positions a chunk starts again: a decode step that is waited for takes less there"


def of_users(deployment: Deployment, budget: int) -> Iterator[str]:
    """Where one user more makes a time under load leap (docs/serving.md). budget: tokens of a step."""
    yield "with other users: their prompts run in or between the steps; a single user meets none"
    yield from _launched(deployment)
    if deployment.engine.batching.mixed and deployment.engine.defaults.scheduler.chunked_prefill:
        yield f"prompts longer than {budget} tokens minus the tokens of the decodes in the same step: one more step"
    yield "more users than the cache holds (max_batch): those beyond wait for a place"
    yield "near capacity: prompts that take several steps wait for those ahead of them"
    if deployment.parallel.pp > 1:
        yield f"up to {deployment.parallel.pp} users per rank: one more batch in flight each"


def _chosen(deployment: Deployment) -> set[int]:
    """How many positions indexers choose, where the engine leaves out a choice of all."""
    if not (deployment.calibration.fused or deployment.engine.defaults.dense_short_prompts):
        return set()
    indexers = (getattr(part, "indexer", None) for part in _parts(deployment))
    return {indexer.top_k for indexer in indexers if indexer is not None}


def _masks(deployment: Deployment) -> set[Mask]:
    return {part.cache().mask for part in _parts(deployment)}


def _parts(deployment: Deployment) -> list[LayerSpec]:
    return [part for layer, _ in deployment.model.distinct for part in layer.parts]


def _launched(deployment: Deployment) -> Iterator[str]:
    captured = deployment.engine.serving.graph_tokens
    if captured:
        yield f"a step with a prompt, of more than {captured} tokens: kernels are launched one by one"
