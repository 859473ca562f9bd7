"""Whole attention modules as engines ran them: rows of the tables as the operators of a layer.

A row times projections, norms, cache writes, the indexer and attention of one layer on one GPU; ``num_heads`` are those
of the rank. The constants of the kernels that no table times alone come from these rows, with everything else priced by
the constants of the same library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from calibrate.fit import Measurement
from inferplan.devices.releases import release_order
from inferplan.models.layers import LayerContext
from inferplan.models.layers.mla import Indexer, MlaLayer
from inferplan.units import Num
from inferplan.work.formats import Precision, find_format, uniform
from inferplan.work.ops import Attention, Elementwise, IndexSelect, Norm, Op, TopK
from inferplan.work.parallel import Parallelism
from inferplan.work.step import WIDE, Segment
from tools.fitting.tables.row import Row

SPARSE = ("dsa_context_module", "dsa_generation_module")
DENSE = ("mla_context_module", "mla_generation_module")
SGLANG = ("mla_module_prefill", "mla_module_decode")
"""Tables of sparse and dense modules by release, and SGLang's older dense ones."""
GEMM = {"bfloat16": ("bf16", "bf16"), "fp8_block": ("fp8-block", "fp8"), "nvfp4": ("nvfp4", "nvfp4")}
"""The tables' names of formats: weights and inputs of the projections."""
GRAPHS = 256
"""Sequences of the largest decode that SGLang's benchmark replays from a graph; larger ones are launched one by one."""
NORM_PASSES, ROTARY_PASSES = 8, (6, 8)
"""Kernels of torch that a norm and the rotary embedding run as where vLLM is not compiled and its own kernels are off:
to fp32, square, mean, add, rsqrt, product, back, weight (``RMSNorm.forward_static``); for the queries two products, a
negation, a stack, a sum and the copy back, and 8 small ones: for the one key the first five, a lookup of cosines and
sines, two repeats of them (``DeepseekScalingRotaryEmbedding.forward_native``)."""
OWN_KERNELS = {"b200-hgx": "0.24"}
"""From which release vLLM's dense modules of a GPU ran its own norms and rotary embedding: the same modules of B200
then lost 45 us whatever their size, those of Hopper none. Servers are compiled: they pay for none of these passes."""
NEAR_FLOOR = 2.0
"""Rows that took less than this many times the fastest of their kind are bound by launches from the host."""
ROPE = 64
"""Rotary width of the models."""
CHOOSES = (IndexSelect, TopK)
"""Operators of the indexer's choice."""
LONG = 8192
"""Cached tokens from which the indexer shows in a decode, and below which the sparse core does."""


def module_rows(folder: Path) -> pd.DataFrame | None:
    """Every row of the module tables with columns ``table``, ``step`` (cached tokens), ``isl`` (new tokens a sequence),
    ``indexed``, ``shared`` (takes an earlier layer's choice) and ``glm``; ``None`` where there is no table.

    SGLang's older tables give the cached tokens of a decode as ``isl``, and name an fp8 cache that their times
    contradict: their slope over the context is that of the bf16 kernel, a sixth of the fp8 one's
    (docs/formulas/mla.md). Rows whose attention itself runs in fp8 are left out: no operator does.
    """
    frames = []
    for name in (*(f"releases/{name}" for name in (*SPARSE, *DENSE)), *SGLANG):
        file = folder / f"{name}.csv.gz"
        if not file.is_file():
            continue
        frame = pd.read_csv(file).assign(table=name.rpartition("/")[2])
        if name in SGLANG:
            decode = name.endswith("decode")
            frame["gemm_type"], frame["mla_dtype"], frame["kv_cache_dtype"] = "fp8_block", "bfloat16", "bfloat16"
            frame["step"] = frame["isl"] if decode else 0
            frame["isl"] = 1 if decode else frame["isl"]
        frames.append(frame)
    if not frames:
        return None
    rows = pd.concat(frames, ignore_index=True)
    rows["framework"] = rows.framework.str.lower()
    rows["indexed"] = rows.table.isin(SPARSE)
    rows["shared"] = rows.kernel_source.str.contains("skip_indexer")
    rows["glm"] = rows.model.astype(str).str.contains("GLM")
    return rows[rows.mla_dtype != "fp8"]


def age(version: str) -> tuple[Any, ...]:
    """What sorts releases of one engine, the oldest first."""
    return release_order(version) or ((), 0, 0)


def newest(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the newest release of each framework on each GPU, table by table."""

    last = rows.groupby(["table", "framework", "gpu"]).version.transform(lambda found: max(set(found), key=age))
    return rows[rows.version == last]


def layer_of(row: Any) -> tuple[MlaLayer, int]:
    """The layer of a row and the model's width: DeepSeek-V3 and V3.2 or GLM-5, with the heads of one rank."""
    glm = bool(row.glm)
    sizes = (2048, 512, 192, ROPE, 256) if glm else (1536, 512, 128, ROPE, 128)
    names = ("q_lora", "kv_lora", "nope_dim", "rope_dim", "value_dim")
    index = None
    if row.indexed:
        heads = 32 if glm else 64
        index = Indexer(heads=heads, head_dim=128, top_k=2048, shared=bool(row.shared), format="fp8-token-head")
    widths: dict[str, Any] = dict(zip(names, sizes))
    layer = MlaLayer(heads=int(row.num_heads), indexer=index, **widths)
    return layer, 6144 if glm else 7168


def precision_of(row: Any) -> Precision:
    """The formats of a row."""
    weights, inputs = map(find_format, GEMM[row.gemm_type])
    kv = find_format("fp8" if row.kv_cache_dtype.startswith("fp8") else "bf16")
    return replace(uniform(), weights=weights, activations=inputs, kv=kv)


def in_graphs(rows: pd.DataFrame) -> Any:
    """Which modules were replayed from graphs rather than launched kernel by kernel: vLLM's and TRT-LLM's but vLLM's
    sparse prompts (``collect_mla_module.py`` of aiconfigurator), SGLang's decodes up to :data:`GRAPHS` sequences."""
    decode = ~rows.table.str.contains("context|prefill")
    vllm = (rows.framework == "vllm") & (decode | ~rows["indexed"])
    sglang = (rows.framework == "sglang") & decode & (rows.batch_size <= GRAPHS)
    return vllm | sglang | (rows.framework == "trtllm")


def worked(op: Op) -> Num:
    """The FLOP of an operator."""
    return op.work().flop


def takes_form(row: Any, otherwise: Callable[[Op], Num]) -> Callable[[Op], Num]:
    """The time by which a dense layer chooses the form that the row names: vLLM on Hopper absorbs short prompts, which
    it computes as decodes, and expands the rest, as other engines do all prompts; sparse layers by ``otherwise``."""
    if row.indexed:
        return otherwise
    absorbed = row.kernel_source.endswith("MLA")

    def seconds(op: Op) -> Num:
        return float(isinstance(op, Attention) and op.shared_value != absorbed)

    return seconds


def uncompiled(row: Any, ops: list[Op]) -> list[Op]:
    """The passes of torch that stand for norms and rotary embedding in a module of vLLM that was not compiled."""
    own = OWN_KERNELS.get(row.gpu)
    if row.framework != "vllm" or row.indexed or (own is not None and age(row.version) >= age(own)):
        return ops
    passes: list[Op] = []
    for op in ops:
        if isinstance(op, Norm):
            passes.append(op.repeated(NORM_PASSES))
        elif isinstance(op, Elementwise):
            whole, small = ROTARY_PASSES
            passes += [op.repeated(whole), replace(op, name=f"{op.name}.key", width=ROPE).repeated(small)]
        else:
            passes.append(op)
    return passes


def dense(row: Any) -> bool:
    """Whether a row of SGLang names dense attention, which scores nothing: of few new tokens, too, where a step
    of decodes would score."""
    return "dense" in row.kernel_source


def module_ops(
    row: Any, segment: Segment, time: Callable[[Op], Num] = worked, peaks: frozenset[str] | None = None
) -> list[Op]:
    """The operators of the module for a segment; ``row`` gives layer, formats and form, ``peaks`` the arithmetic that
    the device has (all), ``time`` what an operator takes, by which sparse layers choose a form (their FLOP)."""
    layer, width = layer_of(row)
    context = LayerContext(
        d_model=width,
        precision=precision_of(row),
        parallel=Parallelism(),
        segments=(segment,),
        dense_short=row.framework == "sglang",
        peaks=peaks,
        time=takes_form(row, time),
    )
    return uncompiled(row, [op for op in layer.ops(context) if not (dense(row) and isinstance(op, CHOOSES))])


def kernel_rows(folder: Path) -> Iterator[Row]:
    """Sparse modules as measurements of the kernel that decides them.

    Prompts: attention on the chosen latents, where no table times it alone (any engine but SGLang over bf16). Decodes:
    the same for few tokens, from contexts up to ``LONG``; index scores from longer ones.
    """
    found = module_rows(folder)
    if found is None:
        return
    rows = newest(found[found["indexed"]])
    kinds = ["table", "framework", "gpu", "gemm_type", "kv_cache_dtype", "kernel_source"]
    near = rows.latency_ms < NEAR_FLOOR * rows.groupby(kinds).latency_ms.transform("min")
    graphs = (rows.framework == "sglang") & (rows.isl == 1)
    rows = rows[(graphs & (rows.batch_size <= GRAPHS)) | ~(graphs | near)]
    records: Iterator[Any] = rows.itertuples(index=False)
    for row in records:
        wide, past = row.isl > WIDE, float(row.step)
        timed_alone = row.framework == "sglang" and (row.kv_cache_dtype == "bfloat16" or past + row.isl <= 2048)
        if (wide and timed_alone) or (not wide and row.isl > 1):
            continue
        ops = module_ops(row, Segment(batch=float(row.batch_size), new=float(row.isl), past=past))
        scored = not wide and past > LONG and not row.shared
        timed = next(op for op in ops if (isinstance(op, IndexSelect) if scored else op.name == "attn.core"))
        rest = tuple(op for op in ops if op is not timed)
        measurement = Measurement(op=timed, rest=rest, seconds=row.latency_ms * 1e-3, source=str(row.kernel_source))
        yield Row(str(row.gpu), str(row.framework), f"{row.kernel_source} module", measurement)
