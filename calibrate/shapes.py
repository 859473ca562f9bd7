"""The shapes to measure: operators of real models' graphs at log-spaced tokens and contexts, spread over their range.

A model's graph is built by the very builder that an estimate uses; operators of equal work in equal formats are one
shape; of each kernel and format the shapes farthest from those already chosen come first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from calibrate.samples import key_of
from inferplan.catalog.assemble import load_engine
from inferplan.catalog.files import load_model
from inferplan.devices.constants import Calibration
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import IndivisibleError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.graph import build
from inferplan.models.layers import parse_layer
from inferplan.models.spec import LayerGroup, ModelSpec
from inferplan.units import Array
from inferplan.work.formats import Precision, parse_precision
from inferplan.work.ops import Copy, GroupedMatmul, Matmul, Op, Wired
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Segment, Step

Group = tuple[str, str]
UNFUSED = Calibration(name="none", basis="roofline", fused=False)
"""Every operator that an engine runs, epilogues among them."""


def tiny_dense() -> ModelSpec:
    """A grouped-query decoder that a CPU runs in milliseconds."""
    return _tiny(
        "tiny-dense",
        {"kind": "attention", "heads": 8, "kv_heads": 2, "head_dim": 64},
        {"kind": "mlp", "d_ff": 1536},
    )


def tiny_moe() -> ModelSpec:
    """Sixteen experts, two for each token."""
    return _tiny(
        "tiny-moe",
        {"kind": "attention", "heads": 8, "kv_heads": 8, "head_dim": 64},
        {"kind": "moe", "experts": 16, "top_k": 2, "d_ff": 512},
    )


def tiny_mla() -> ModelSpec:
    """Latent attention with heads of 64 + 32."""
    mla = {"kind": "mla", "heads": 8, "kv_lora": 128, "nope_dim": 64, "rope_dim": 32, "value_dim": 64}
    return _tiny("tiny-mla", mla, {"kind": "mlp", "d_ff": 1536})


def _tiny(name: str, mixer: dict[str, object], ffn: dict[str, object]) -> ModelSpec:
    layer = LayerGroup.model_validate({"repeat": 4, "mixer": parse_layer(mixer), "ffn": parse_layer(ffn)})
    return ModelSpec(name=name, source="made for calibration on a CPU", d_model=512, vocab=8192, layers=[layer])


TINY = {spec().name: spec for spec in (tiny_dense, tiny_moe, tiny_mla)}


def find_model(name: str) -> ModelSpec:
    """A model of the catalogue or one of the tiny ones."""
    return TINY[name]() if name in TINY else load_model(name)


@dataclass(frozen=True, kw_only=True)
class Design:
    """Which graphs the shapes come from.

    tp: the divisions that give each model further widths. base: the format every operator is measured in. others: base
    formats of the first model only. quantised: formats of linear layers, of the models in ``quantised_models``.
    """

    models: tuple[str, ...]
    tp: tuple[int, ...]
    base: str
    others: tuple[str, ...]
    quantised: tuple[str, ...]
    quantised_models: tuple[str, ...]
    prompts: tuple[int, ...]
    prefill_batches: tuple[int, ...]
    decode_batches: tuple[int, ...]
    contexts: tuple[int, ...]
    chunks: bool = True
    """Chunks of a longer prefill among the shapes."""


CPU = Design(
    models=("qwen2.5-0.5b", "llama-3.2-1b", "qwen2.5-1.5b", *TINY),
    tp=(1,),
    base="bf16",
    others=("fp32",),
    quantised=("int8", "int4"),
    quantised_models=("llama-3.2-1b",),
    prompts=(24, 48, 96, 192, 384, 768),
    prefill_batches=(1, 4),
    decode_batches=(1, 2, 4, 8, 16, 32),
    contexts=(64, 192, 512, 1536, 4096, 12288),
    chunks=False,
)
"""Small models in the formats a CPU has. No chunks: with keys before the first query torch computes the rectangle."""
GPU = Design(
    models=(
        "llama-3.1-8b",
        "llama-3.1-70b",
        "qwen2.5-7b",
        "qwen3-30b-a3b",
        "gemma-3-12b",
        "deepseek-v2-lite",
        "mamba2-2.7b",
        "olmoe-1b-7b-0924",
    ),
    tp=(1, 2, 4, 8),
    base="bf16",
    others=("fp16", "fp32"),
    quantised=("fp8", "fp8-block", "int8", "int4"),
    quantised_models=("llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b"),
    prompts=(64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    prefill_batches=(1, 4, 16),
    decode_batches=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    contexts=(128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536),
)
"""Dense, sparse, windowed, latent and recurrent models, in the formats an accelerator has."""


def steps(design: Design, contexts: tuple[int, ...]) -> Iterator[Step]:
    """Prefills, chunks of a prefill, and decode steps at some contexts."""
    for batch, prompt in product(design.prefill_batches, design.prompts):
        yield Step(segments=(Segment(batch=float(batch), new=float(prompt), past=0.0),))
    for prompt in design.prompts[2::2] if design.chunks else ():
        yield Step(segments=(Segment(batch=1.0, new=float(prompt), past=float(2 * prompt)),))
    for batch, context in product(design.decode_batches, contexts):
        yield Step(segments=(Segment(batch=float(batch), new=1.0, past=float(context - 1)),))


def candidates(design: Design, hardware: HardwareSpec) -> dict[str, Op]:
    """Every different shape of a design, by its key; collectives aside, which need several devices.

    Formats without arithmetic on the hardware are left out: there would be nothing to compare with.
    """
    peaks = frozenset(hardware.peak)
    found: dict[str, Op] = {}
    for name in design.models if design.base in peaks else ():
        _collect(
            found,
            _deployments(name, parse_precision(design.base, peaks), design.tp, hardware),
            steps(design, design.contexts),
        )
    for base in design.others:
        if base in peaks:
            deployments = _deployments(design.models[0], parse_precision(base, peaks, base), design.tp[:2], hardware)
            _collect(found, deployments, steps(design, design.contexts))
    for name, quantised in product(design.quantised_models, design.quantised):
        precision = parse_precision(quantised, peaks, design.base)
        if precision.linear_input(precision.weights).math in peaks and design.base in peaks:
            deployments = _deployments(name, precision, design.tp, hardware)
            _collect(found, deployments, steps(design, design.contexts[:1]), (Matmul, GroupedMatmul, Copy))
    return found


def _deployments(name: str, precision: Precision, degrees: tuple[int, ...], hardware: HardwareSpec) -> list[Deployment]:
    """One model in one precision, divided in every way that it can be."""
    model, engine, made = find_model(name), load_engine("none"), []
    for tp in degrees:
        parallel = Parallelism(tp=tp)
        try:
            model.check(parallel)
        except IndivisibleError:
            continue
        made.append(
            Deployment(
                model=model,
                hardware=_linked(hardware, tp),
                precision=precision,
                parallel=parallel,
                engine=engine,
                calibration=UNFUSED,
            )
        )
    return made


def _collect(
    found: dict[str, Op], deployments: list[Deployment], taken: Iterable[Step], kinds: tuple[type[Op], ...] = (Op,)
) -> None:
    for deployment, step in product(deployments, list(taken)):
        for op in (op for stage in build(deployment, step) for op in stage.ops):
            if isinstance(op, kinds) and not isinstance(op, Wired):
                found.setdefault(key_of(op), op)


def _linked(hardware: HardwareSpec, tp: int) -> HardwareSpec:
    """The hardware with a link between any devices: shapes of one rank are wanted, whatever joins the ranks."""
    if tp == 1:
        return hardware
    link = {"name": "any", "bandwidth": "1 B/s"}
    return HardwareSpec.model_validate({**_plain(hardware), "links": [link]})


def _plain(hardware: HardwareSpec) -> dict[str, object]:
    memory = {"label": "", "bandwidth": f"{hardware.memory.bandwidth} B/s"}
    peak = {name: f"{rate} FLOP/s" for name, rate in hardware.peak.items()}
    return {
        "name": hardware.name,
        "vendor": hardware.vendor,
        "product": hardware.product,
        "source": hardware.source,
        "confidence": hardware.confidence,
        "memory": memory,
        "peak": peak,
    }


def group_of(op: Op) -> Group:
    """The kernel and format whose constants it helps to fit."""
    return op.kernel, op.label


def spread(shapes: Iterable[Op], seed: int = 0) -> list[Op]:
    """Shapes in the order in which each is the farthest, in log FLOP and log bytes, from all before it.

    The first is the one nearest the middle; ties (equal work, different shapes) are broken by chance.
    """
    pool = list(shapes)
    points = _points(pool)
    chance = np.random.default_rng(seed).uniform(0.0, 1e-3, len(pool))
    at = int(np.argmin(np.sum((points - np.median(points, axis=0)) ** 2, axis=1) + chance))
    distance = np.full(len(pool), np.inf)
    order = []
    for _ in pool:
        order.append(at)
        distance = np.minimum(distance, np.sum((points - points[at]) ** 2, axis=1) + chance)
        distance[at] = -1.0
        at = int(np.argmax(distance))
    return [pool[index] for index in order]


def _points(pool: list[Op]) -> Array:
    works = [op.work() for op in pool]
    table = np.array([[float(w.flop), float(w.bytes + w.wire)] for w in works])
    logs: Array = np.log2(np.maximum(table, 1.0))
    return logs


WEIGHT = {"matmul": 6.0, "grouped_matmul": 2.0, "attention.prefill": 6.0, "attention.decode": 6.0}
"""How many more shapes a kernel gets than the plain ones."""
PLAIN = 7
"""Shapes of every kernel and format before any gets more: enough to fit and to hold some out."""
FIRST = ("matmul", "attention.decode", "attention.prefill", "elementwise", "norm", "copy", "gather", "grouped_matmul")
"""Kernels in the order in which they are worth the time of a short run."""


def importance(group: Group, base: str) -> tuple[bool, int, Group]:
    """What sorts kernels and formats by how much a short run needs them: the base format's by :data:`FIRST`, then the
    other formats'."""
    kernel, label = group
    place = FIRST.index(kernel) if kernel in FIRST else len(FIRST)
    return label not in ("any", base) and not label.startswith(f"{base}-"), place, group


def choose(found: Iterable[Op], count: int, base: str, seed: int = 0) -> list[Op]:
    """At most ``count`` shapes: :data:`PLAIN` of each kernel and format, then more by :data:`WEIGHT`.

    When there is no time for every group, the most important ones (in the base format first) get their shapes and the
    others none. They come in the order to measure, a round of all groups again and again, so that a run cut short has
    some of each.
    """
    groups: dict[Group, list[Op]] = defaultdict(list)
    for op in found:
        groups[group_of(op)].append(op)

    kept = sorted(groups, key=lambda group: importance(group, base))[: max(1, count // PLAIN)]
    queues = {group: spread(groups[group], seed) for group in kept}
    unit = max(0.0, count - PLAIN * len(kept)) / sum(WEIGHT.get(kernel, 0.2) for kernel, _ in kept)
    quota = {group: PLAIN + unit * WEIGHT.get(group[0], 0.2) for group in kept}
    turns = [(place / quota[g], g, op) for g, ops in queues.items() for place, op in enumerate(ops[: round(quota[g])])]
    return [op for _, _, op in sorted(turns, key=lambda turn: turn[:2])][:count]


def operand_bytes(op: Op) -> float:
    """Memory that one set of operands takes: all experts of a rank, not only those touched; a table to look up in."""
    if isinstance(op, GroupedMatmul):
        return float(op.m * op.k * op.input.width + op.experts * op.k * op.n * op.weight.width)
    return float(op.work().read) * (5.0 if op.kind == "gather" else 1.0)


def small(op: Op, most: int = 256) -> Op:
    """The operator at a size at which a float64 reference takes no time: its formats and ratios stay."""
    limits = {"m": 48, "new": 40, "past": 64, "batch": 2, "tokens": 8, "elements": 4096, "experts": 4, "touched": 3}
    limits |= {"k": most, "n": most, "channels": 64, "top_k": 16}
    changes = {}
    for name, limit in limits.items():
        value = getattr(op, name, None)
        if value is not None and value > limit and not (name == "new" and value <= 1):
            changes[name] = type(value)(limit)
    if op.kind in ("norm", "gather"):
        changes["width"] = min(op.width, most)  # type: ignore[attr-defined]
    return replace(op, **changes)
