"""Kernel tables into measurements, and measurements into ``configs/calibration``.

The tables are CSV files (gzipped or not) whose columns name shapes and formats; each row becomes the operator of
exactly that shape, or the operators that its kernel fuses. Collective ``message_size`` is in elements.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd

from calibrate.fit import Group, Measurement
from inferplan.errors import InputFileError
from inferplan.models.layers.gated_delta_net import delta_flops
from inferplan.units import Array
from inferplan.work.formats import Format, find_format
from inferplan.work.ops import (
    Attention,
    Collective,
    Conv,
    Copy,
    Elementwise,
    GroupedMatmul,
    IndexSelect,
    Mask,
    Matmul,
    Norm,
    Op,
    Scan,
    TopK,
)
from inferplan.work.step import WIDE, Segment
from tools.fitting.tables import exchanges
from tools.fitting.tables.modules import age, kernel_rows
from tools.fitting.tables.row import Row

BF16 = find_format("bf16")
FP8 = find_format("fp8")
FORMATS: dict[str, tuple[str, str]] = {
    "bfloat16": ("bf16", "bf16"),
    "half": ("bf16", "bf16"),
    "fp8": ("fp8", "fp8"),
    "fp8_block": ("fp8-block", "fp8"),
    "nvfp4": ("nvfp4", "nvfp4"),
    "sq": ("int8", "int8"),
    "int8_wo": ("int8", "bf16"),
    "int4_wo": ("int4", "bf16"),
    "w4a16_mxfp4": ("mxfp4", "bf16"),
    "w4a8_mxfp4_mxfp8": ("mxfp4", "fp8"),
}
"""The tables' names of formats: (weights, inputs)."""
DELTA_CHUNK = 64
SKIPPED = ("nongated", "situ_as_silu", "eager")
"""Kernels of experts without a gate or with one model's activation: other operators. Collectives launched eagerly:
serving launches them inside a graph."""
LAUNCHED = {"moe_deepep_prefill": 4.0}
"""Tables that were launched kernel by kernel: rows count that take so many times as long as the fastest of their GPU
and release, which is launches alone."""
SORTED = "moe_torch_flow"
"""Kernels of experts around which the engine sorts the rows in kernels of their own (TensorRT-LLM
``cpp/tensorrt_llm/kernels/cutlass_kernels/moe_gemm/moe_kernels.cu``: ``expandInputRowsKernel``,
``finalizeMoeRoutingKernel``), but for weights in mxfp4, which other kernels take. Triton's and Marlin's read rows
through an index."""
LARGE_MESSAGE = 2**19
"""Elements from which the slowest of the unlabelled collectives is the all-reduce: it sends twice the bytes."""
WRITTEN_APART = ("0.16", "0.24")
"""Releases of vLLM: from the first on its attention leaves the cache write to a call of its own
(``forward_includes_kv_cache_update``), which the tables time again from the second on: one sequence on an H100 takes
10.9 us in 0.14, 8.3 in 0.19 and 10.1 in 0.24, on a B200 6.7, 6.1 and 8.7 in 0.19, 0.22 and 0.24."""
LATENT, LATENT_ROPE, LATENT_HEAD = 512, 64, 128
"""Widths of the latent attention that the tables time (DeepSeek-V3): the latent, the rotary key beside it, a head's key
without position."""
QUANTISED_LATENTS = "1.1"
"""Release of TensorRT-LLM from which its latent attention was timed over an fp8 cache. The script before it asserts a
bf16 cache (``collect_mla_v1.py``): its rows that say fp8 take 1.00 times (median) what those of bf16 take."""
KEYS_ALONE = "trtllm"
"""Engine whose short convolution was timed over the keys alone (``conv_channels`` of ``collect_gdn.py``), where a layer
convolves queries, keys and values: its rows take the same time at every width of the values, 10.8 TB/s on an H100."""
INDEX_HEADS, CHOSEN = 32, 2048
"""Index heads and chosen positions of the GLM-5 models whose sparse attention the tables time (config.json)."""
Reader = Callable[[Any], tuple[Op, ...]]


def _formats(name: str) -> tuple[Format, Format]:
    weight, inputs = FORMATS[name]
    return find_format(weight), find_format(inputs)


def _quantise(name: str, elements: float, inputs: Format) -> tuple[Op, ...]:
    """The operator with which the graph quantises a matmul's input; the tables time it with the matmul."""
    return () if inputs == BF16 else (Copy(name=name, elements=elements, source=BF16, target=inputs),)


def _gemm(row: Any) -> tuple[Op, ...]:
    weight, inputs = _formats(row.gemm_dtype)
    matmul = Matmul(name="gemm", m=float(row.m), k=int(row.k), n=int(row.n), weight=weight, input=inputs, output=BF16)
    if row.gemm_dtype == "sq":  # the profile of the plugin alone (collect_gemm_trt.py), whose input comes quantised
        return (matmul,)
    return (matmul, *_quantise("gemm.quantise", float(row.m) * row.k, inputs))


def _mask(row: Any) -> Mask:
    window = getattr(row, "window_size", 0.0)
    return Mask(kind="window", size=int(window)) if window and window > 0 else Mask()


def _attention(row: Any) -> tuple[Op, ...]:
    prefill = row.step == 0
    new, sizes = float(row.isl) if prefill else 1.0, (int(row.num_heads), int(row.num_key_value_heads))
    cache = FP8 if row.kv_cache_dtype == "fp8" else BF16
    return (
        Attention(
            name="attention",
            batch=float(row.batch_size),
            new=new,
            past=0.0 if prefill else float(row.step),
            heads=sizes[0],
            kv_heads=sizes[1],
            key_dim=int(row.head_dim),
            value_dim=int(row.head_dim),
            mask=_mask(row),
            base=BF16,
            kv=cache,
        ),
        *_beside_attention(row, float(row.batch_size) * new, sizes, cache),
    )


def _beside_attention(row: Any, tokens: float, sizes: tuple[int, int], cache: Format) -> Iterator[Op]:
    """What the timed call of an engine does beside attention, and the graph has as operators of its own.

    Each writes the keys and values of its tokens to the cache; TensorRT-LLM's applies the rotary embedding, too
    (``collect_attn.py`` of ai-dynamo/aiconfigurator, one for each engine: ``_forward_with_optional_kv_cache_update`` of
    vLLM, ``RadixAttention`` of SGLang, which saves by default, ``pos_embd_params`` of TensorRT-LLM).
    """
    engine, (heads, kv_heads), width = str(row.framework).lower(), sizes, int(row.head_dim)
    first, timed = map(age, WRITTEN_APART)
    if engine != "vllm" or not first <= age(str(row.version)) < timed:
        yield Copy(name="kv_write", elements=tokens * 2 * kv_heads * width, source=BF16, target=cache)
    if engine == "trtllm":
        yield Elementwise(name="rotary", tokens=tokens, width=(heads + kv_heads) * width, base=BF16, flops=3.0)


def _encoder(row: Any) -> tuple[Op, ...]:
    """Attention of a tower or an encoder: every position looks at every other."""
    heads, width = int(row.num_heads), int(row.head_dim)
    return (
        Attention(
            name="encoder",
            batch=float(row.batch_size),
            new=float(row.isl),
            past=0.0,
            heads=heads,
            kv_heads=heads,
            key_dim=width,
            value_dim=width,
            mask=Mask(kind="full"),
            base=BF16,
            kv=BF16,
        ),
    )


def _mla(row: Any) -> tuple[Op, ...]:
    prefill = row.step == 0
    new = float(row.isl) if prefill else 1.0
    return (
        Attention(
            name="mla",
            batch=float(row.batch_size),
            new=new,
            past=0.0 if prefill else float(row.step),
            heads=int(row.num_heads),
            kv_heads=int(row.num_heads) if prefill else 1,
            key_dim=(LATENT_HEAD if prefill else LATENT) + LATENT_ROPE,
            value_dim=LATENT_HEAD if prefill else LATENT,
            mask=Mask(),
            base=BF16,
            kv=FP8 if row.kv_cache_dtype == "fp8" and not prefill else BF16,
            shared_value=not prefill,
        ),
        *_beside_latents(row, float(row.batch_size) * new, prefill),
    )


def _beside_latents(row: Any, tokens: float, prefill: bool) -> Iterator[Op]:
    """What the timed call does beside latent attention, and the graph has as operators of its own.

    TensorRT-LLM's turns queries and rotary key by their positions and writes the latent to the cache, from 1.2 on in
    ``mla_rope_generation``, which is timed with the call (``collect_mla_v1.py``, ``collect_mla_v2.py``). SGLang's saves
    by default; of a prompt its script has one head's key for the latent, and over an fp8 cache its TensorRT-LLM kernel
    turns queries and key while it quantises them (``collect_mla.py``; ``trtllm_mla_backend.py`` of SGLang). vLLM's
    calls hold products of the weights as well; no fit sees them, for all were launched by the host.
    """
    engine, quantised = str(row.framework).lower(), row.kv_cache_dtype == "fp8"
    width = (LATENT_HEAD if prefill and engine == "sglang" else LATENT) + LATENT_ROPE
    yield Copy(name="kv_write", elements=tokens * width, source=BF16, target=FP8 if quantised else BF16)
    turned = quantised and not prefill and row.kernel_source == "trtllm_mla"
    if engine == "trtllm" or turned:
        heads = int(row.num_heads) + 1
        yield Elementwise(name="rotary", tokens=tokens, width=heads * LATENT_ROPE, base=BF16, flops=3.0)


def routed(tokens: int, top_k: int, experts: int, ranks: int, skew: float) -> tuple[float, float]:
    """Rows and touched experts of the busiest of ``ranks`` ranks that share ``experts``.

    ``skew = 0`` deals the tokens out evenly; otherwise the load of an expert is drawn from a power law of that exponent
    between 1 and 0.8 of the tokens, as the tables' benchmark does, averaged over a few draws.
    """
    if skew == 0.0:
        return tokens * top_k / ranks, min(experts, tokens * top_k) / ranks
    generator, rows, reached = np.random.default_rng(0), [], []
    for _ in range(8):
        high = max(tokens * 0.8, 1.0 + 1e-9)
        draw = generator.random(experts)
        load = ((high ** (1 - skew) - 1.0) * draw + 1.0) ** (1 / (1 - skew))
        load = _dealt(load / load.sum() * tokens * top_k, tokens, tokens * top_k)
        shards = load.reshape(ranks, -1)
        busiest = shards[np.argmax(shards.sum(axis=1))]
        rows.append(float(busiest.sum()))
        reached.append(float((busiest > 0).sum()))
    return max(float(np.mean(rows)), 1.0), max(float(np.mean(reached)), 1.0)


def _dealt(load: Array, cap: int, total: int) -> Array:
    """Whole rows for each expert, no more than ``cap``, that add up to ``total``: the largest remainders first."""
    whole = np.minimum(np.floor(load), cap)
    order = np.argsort(-(load - whole))
    while (short := int(total - whole.sum())) > 0:
        open_ = order[whole[order] < cap][:short]
        if not len(open_):
            break
        whole[open_] += 1
    return whole


def _moe(row: Any) -> tuple[Op, ...]:
    weight, inputs = _formats(row.moe_dtype)
    skew = 0.0 if row.distribution == "balanced" else float(row.distribution.rsplit("_", 1)[1])
    ranks = int(row.moe_ep_size)
    rows, reached = routed(int(row.num_tokens), int(row.topk), int(row.num_experts), ranks, skew)
    width, columns = int(row.hidden_size), int(row.inter_size) // int(row.moe_tp_size)
    shared: dict[str, Any] = {"experts": int(row.num_experts) // ranks, "touched": reached, "weight": weight}
    shared |= {"input": inputs, "output": BF16, "m": rows}
    apart = str(row.kernel_source).startswith(SORTED) and weight.name != "mxfp4"
    ways: tuple[Any, Any] = ("input", "output") if apart else ("", "")
    return (
        GroupedMatmul(name="gate_up", k=width, n=2 * columns, reordered=ways[0], **shared),
        GroupedMatmul(name="down", k=columns, n=width, reordered=ways[1], **shared),
        *_quantise("gate_up.quantise", rows * width, inputs),
        *_quantise("down.quantise", rows * columns, inputs),
        Elementwise(name="activation", tokens=rows, width=columns, base=BF16, reads=2.0, flops=5.0),
        Elementwise(name="combine", tokens=rows, width=width, base=BF16, flops=2.0),
    )


_routed = cache(routed)


def _exchanged(row: Any, rows: float, found: float, slots: int) -> tuple[Op, ...]:
    """The experts of one rank whose ``rows`` came from other ranks, ``found`` of its ``slots`` with work."""
    weight, inputs = _formats(row.moe_dtype)
    width, columns = int(row.hidden_size), int(row.inter_size) // int(row.moe_tp_size)
    shared: dict[str, Any] = {"experts": slots, "touched": found, "weight": weight, "input": inputs, "m": rows}
    shared |= {"output": BF16, "exchanged": True}
    return (
        GroupedMatmul(name="gate_up", k=width, n=2 * columns, **shared),
        GroupedMatmul(name="down", k=columns, n=width, **shared),
        *_quantise("down.quantise", rows * columns, inputs),
        Elementwise(name="activation", tokens=rows, width=columns, base=BF16, reads=2.0, flops=5.0),
    )


def _wide_ep(row: Any) -> tuple[Op, ...]:
    """Experts of the busiest of ``moe_ep_size`` ranks. ``rank0_num_tokens`` tokens reach it, with ``rows`` of their
    ``topk`` choices: where choices are independent, ``T0 = T*(1 - (1 - rows/(k*T))^k)``. Balanced slots all have work
    as in uniform routing; without a balancer the rank is the one with the most popular experts, and all of them do.
    """
    tokens, top_k, reached = int(row.num_tokens), int(row.topk), float(row.rank0_num_tokens)
    mean = tokens * top_k / int(row.moe_ep_size)
    chosen = top_k * tokens * (1.0 - (1.0 - min(reached / tokens, 1.0 - 1e-9)) ** (1.0 / top_k))
    rows = min(max(chosen, mean, reached, 1.0), top_k * reached)
    slots = int(row.num_slots) // int(row.moe_ep_size)
    found = slots * (1.0 - (1.0 - 1.0 / slots) ** rows) if row.distribution.endswith("eplb") else min(slots, rows)
    _, inputs = _formats(row.moe_dtype)
    width = int(row.hidden_size)
    return (
        *_exchanged(row, rows, found, slots),
        *_quantise("gate_up.quantise", reached * width, inputs),
        Elementwise(name="combine", tokens=rows, width=width, base=BF16, flops=2.0),
    )


def _deepep_decode(row: Any) -> tuple[Op, ...]:
    """Experts of the busiest rank under the low-latency exchange, which brings rows quantised and sorted."""
    tokens, ranks, slots = int(row.num_tokens), int(row.moe_ep_size), int(row.num_experts) // int(row.moe_ep_size)
    skew = 0.0 if row.distribution == "uniform" else float(row.distribution.rsplit("_", 1)[1])
    rows, found = _routed(tokens, int(row.topk), int(row.num_experts), ranks, skew)
    return _exchanged(row, max(rows, 1.0), min(max(found, 1.0), slots), slots)


def _deepep_prefill(row: Any) -> tuple[Op, ...]:
    """The same under the normal exchange: rows are sorted by expert, and added up for every token that came; the
    benchmark lets the tokens of all ranks come."""
    gate_up, *others = _deepep_decode(row)
    assert isinstance(gate_up, GroupedMatmul)
    rows, width = gate_up.m, int(row.hidden_size)
    return (
        gate_up,
        *others,
        Copy(name="sort", elements=rows * width, source=FP8, target=FP8),
        Elementwise(name="combine", tokens=rows, width=width, base=BF16, flops=2.0),
        Copy(name="out", elements=float(row.num_tokens) * width, source=BF16, target=BF16),
    )


def _collective(pattern: str, elements: float, group: int) -> Op:
    return Collective(name=pattern, pattern=pattern, elements=elements, group=group, format=BF16, span=group)


def _all_reduce(row: Any) -> tuple[Op, ...]:
    return (_collective("all_reduce", float(row.message_size), int(row.num_gpus)),)


def _conv(row: Any, channels: int) -> tuple[Op, ...]:
    new = float(row.seq_len) if row.phase == "context" else 1.0
    return (
        Conv(name="conv", batch=float(row.batch_size), new=new, channels=channels, taps=int(row.d_conv), base=BF16),
    )


def _delta_net(row: Any) -> tuple[Op, ...]:
    """The scan of a gated delta net, with the norm of queries and keys where the timed kernel does it
    (``use_qk_l2norm_in_kernel`` of ``collect_gdn.py``): SGLang's of prompts, and packed decodes."""
    heads, key, value = int(row.num_v_heads), int(row.head_k_dim), int(row.head_v_dim)
    keys, engine = int(row.num_k_heads) * key, str(row.framework).lower()
    if row.kernel_source.startswith("causal_conv1d"):
        return _conv(row, keys if engine == KEYS_ALONE else 2 * keys + heads * value)
    prefill = row.phase == "context"
    segment = Segment(batch=float(row.batch_size), new=float(row.seq_len) if prefill else 1.0, past=0.0)
    normed = engine == "sglang" if prefill else row.kernel_source.endswith("packed_decode")
    rows = segment.batch * segment.new * 2 * int(row.num_k_heads)
    norm = Norm(name="qk_norm", tokens=rows, width=key, base=BF16, style="plain")
    return (
        Scan(
            name="delta",
            batch=segment.batch,
            new=segment.new,
            state=heads * key * value,
            flops=delta_flops(segment, (heads, key, value), DELTA_CHUNK),
            inputs=2 * keys + heads * value + 2 * heads,
            outputs=heads * value,
            base=BF16,
            state_format=find_format("fp32"),
            parameters=2 * heads,
            tensor=segment.wide,
        ),
        *((norm,) if normed else ()),
    )


def _sparse(row: Any) -> tuple[Op, ...]:
    """Attention on the 2,048 latents that each token chose; its input is bf16, whatever the cache."""
    return (
        Attention(
            name="mla",
            batch=float(row.batch_size),
            new=float(row.isl),
            past=float(row.step),
            heads=int(row.num_heads),
            kv_heads=1,
            key_dim=LATENT + LATENT_ROPE,
            value_dim=LATENT,
            mask=Mask(kind="top", size=CHOSEN),
            base=BF16,
            kv=BF16,
            shared_value=True,
        ),
    )


def _logits(row: Any) -> tuple[Op, ...]:
    return (
        IndexSelect(
            name="index",
            batch=float(row.batch_size),
            new=float(row.isl),
            past=float(row.step),
            heads=INDEX_HEADS,
            key_dim=128,
            top_k=CHOSEN,
            mask=Mask(),
            base=FP8,
            kv=find_format("fp8-token-head"),
        ),
    )


def _top_k(row: Any) -> tuple[Op, ...]:
    batch, new = float(row.batch_size), float(row.isl)
    scores = batch * Mask().pairs(new, float(row.step))
    return (TopK(name="top_k", rows=batch * new, scores=scores, top_k=CHOSEN, base=find_format("fp32")),)


ENCODER = "releases/encoder_attention"
"""Of it the newest release of each engine counts: the one before was 3 to 6 times slower at head sizes of 72 and 80."""
READERS: dict[str, Reader] = {
    "gemm": _gemm,
    "attention_decode": _attention,
    "attention_prefill": _attention,
    "mla_decode": _mla,
    "mla_prefill": _mla,
    "moe": _moe,
    "moe_wide_ep": _wide_ep,
    "moe_deepep_decode": _deepep_decode,
    "moe_deepep_prefill": _deepep_prefill,
    "allreduce_custom": _all_reduce,
    "gated_delta_net": _delta_net,
    ENCODER: _encoder,
    "releases/glm5_dsa_attn_module": _sparse,
    "releases/glm5_mqa_logits_module": _logits,
    "releases/glm5_topk_module": _top_k,
}
"""Tables by file name (without suffixes), and how a row becomes operators. ``mamba2`` is left out: its convolutions
take the same time at every width, so it does not say what was timed."""


FOR_MANY = ("releases/glm5_dsa_attn_module", "releases/glm5_mqa_logits_module")
"""Kernels of prompts: decodes of few tokens run others, which split the keys. Of the selection, rows whose scores are
all alike (``flat``) are left out: no pass over them tells any apart, which real scores do not ask for."""
ABSORBED = {("mla_prefill", "sglang", "flash_attention"), ("mla_prefill", "sglang", "triton")}
"""Kernels of prompts that were timed on the latents, one KV head of 576 for all query heads: 3.4 times the work of the
expanded form, in which the engine computes prompts. At 8,192 tokens and 128 heads they take 15.9 ms on an H200 where
the other engines take 4.8, and a whole module of that engine, with its projections, is faster. They are left out."""
EXCHANGES: dict[str, Callable[[Iterator[Any]], Iterator[Row]]] = {
    "deepep_low_latency": exchanges.low_latency,
    "deepep_normal": exchanges.normal,
    "alltoall_nvlink": exchanges.nvlink,
}
"""Tables of dispatch and combine, whose rows hold several measurements each."""


def read_tables(folder: Path) -> list[Row]:
    """Every row of the known tables in ``folder``. Raises ``InputFileError`` when there is none."""
    rows = [row for name in READERS for row in read_table(folder, name)]
    rows += _nccl(folder)
    rows += [row for name, reader in EXCHANGES.items() for row in reader(_records(_frame(folder, name)))]
    rows += kernel_rows(folder)
    if not rows:
        known = ", ".join([*READERS, *EXCHANGES])
        raise InputFileError(f"no kernel table in {folder}", hint=f"{known}, as .csv or .csv.gz")
    return rows


def _frame(folder: Path, name: str) -> pd.DataFrame | None:
    for suffix in (".csv.gz", ".csv"):
        if (folder / f"{name}{suffix}").is_file():
            return pd.read_csv(folder / f"{name}{suffix}")
    return None


def _records(frame: pd.DataFrame | None) -> Iterator[Any]:
    """Rows whose columns are attributes."""
    if frame is not None:
        yield from frame.itertuples(index=False)


def without_scales(folder: Path, frame: pd.DataFrame) -> pd.DataFrame:
    """TensorRT-LLM's matmuls in fp8 without the kernels that look for the scale of their input, which an engine with
    static scales does not run: they are timed alone too (``computescale``), 7 to 8 us of rows of 12 us and more."""
    scales = _frame(folder, "releases/computescale")
    if scales is None:
        return frame
    frame, scales = frame.copy(), scales[scales.framework == "trtllm"]
    for gpu, timed in scales.groupby("gpu"):
        typical = timed.groupby(timed.m * timed.k).latency_ms.median()
        rows = (frame.gpu == gpu) & (frame.framework.str.lower() == "trtllm") & (frame.gemm_dtype == "fp8")
        scale = np.interp(np.log((frame.m * frame.k)[rows].clip(lower=1)), np.log(typical.index), typical)
        frame.loc[rows, "latency_ms"] -= scale
    return frame


def older_releases(folder: Path) -> Callable[[str, str, Group], Iterator[tuple[str, str, list[Measurement]]]]:
    """What earlier releases took for a kernel, from the tables by release: of a GPU, library and group the release, the
    kernel's name and its rows, the newest release first; nothing where there are none."""

    def found(gpu: str, library: str, group: Group) -> Iterator[tuple[str, str, list[Measurement]]]:
        name = {"grouped_matmul": "moe", "matmul": "gemm"}.get(group[0], "")
        newest, frame = _frame(folder, name), _frame(folder, f"releases/{name}")
        if newest is None or frame is None:
            return
        newest, frame = (one[(one.gpu == gpu) & (one.framework.str.lower() == library)] for one in (newest, frame))
        column = "moe_dtype" if name == "moe" else "gemm_dtype"
        known = frame[column].map(lambda dtype: dtype in FORMATS and _label(dtype) == group[1])
        frame = frame[known & ~frame.version.isin(newest.version)]
        for release in sorted(frame.version.unique(), key=age, reverse=True):
            part = frame[frame.version == release]
            for kernel, rows in part.groupby("kernel_source"):
                yield release, str(kernel), [row.measurement for row in _measured(rows, name)]

    return found


def _label(dtype: str) -> str:
    """The label of a matmul in one of the tables' formats."""
    weight, inputs = _formats(dtype)
    return Matmul(name="gemm", m=1.0, k=1, n=1, weight=weight, input=inputs, output=BF16).label


def read_table(folder: Path, name: str) -> Iterator[Row]:
    """The rows of one of :data:`READERS`; none where the folder lacks it."""
    frame = _frame(folder, name)
    if frame is not None and name in LAUNCHED:
        fastest = frame.groupby(["gpu", "version"]).latency_ms.transform("min")
        frame = frame[frame.latency_ms > LAUNCHED[name] * fastest]
    if frame is not None and name == "gemm":
        frame = without_scales(folder, frame)
    if frame is not None and name == ENCODER:
        last = frame.groupby(["gpu", "framework"]).version.transform(lambda found: max(set(found), key=age))
        frame = frame[frame.version == last]
    return _measured(frame, name)


def _measured(frame: pd.DataFrame | None, name: str) -> Iterator[Row]:
    skipped: Counter[str] = Counter()
    for row in _records(frame):
        reason = refusal(name, row)
        if reason is None:
            measured = measurement_of(name, row)
            yield Row(str(row.gpu), str(row.framework).lower(), measured.source, measured)
        elif reason:
            skipped[reason] += 1
    for reason, count in skipped.items():
        click.echo(f"{name}: {count} rows skipped, {reason}", err=True)


def measurement_of(name: str, row: Any) -> Measurement:
    """A row of a table as the operators of its shape."""
    ops = READERS[name](row)
    return Measurement(op=ops[0], rest=ops[1:], seconds=float(row.latency_ms) * 1e-3, source=str(row.kernel_source))


def refusal(name: str, row: Any) -> str | None:
    """Why a row of a table is no measurement of an operator; empty where it is one of another operator, which nobody
    needs to hear of; ``None`` where it is a measurement."""
    kernel = str(row.kernel_source)
    short = "attention" in name or "mla" in name
    few = (name in FOR_MANY and row.isl <= WIDE) or getattr(row, "score_mode", "") == "flat"
    engine = str(row.framework).lower()
    if (name, engine, kernel) in ABSORBED or any(word in kernel for word in SKIPPED):
        return ""
    quantised = engine == "trtllm" and "mla" in name and row.kv_cache_dtype == "fp8"
    if quantised and age(str(row.version)) < age(QUANTISED_LATENTS):
        return ""
    if few or (short and getattr(row, "step", 0) == 0 and row.isl <= WIDE):
        return ""
    for column in ("gemm_dtype", "moe_dtype"):
        stated = getattr(row, column, None)
        if stated is not None and stated not in FORMATS:
            return f"{column} {stated!r} is no format on file"
    for column in ("m", "num_tokens"):
        if getattr(row, column, 1) < 1:
            return f"{column} is {getattr(row, column)}"
    return None if row.latency_ms > 0.0 else f"latency_ms is {row.latency_ms}"


def _nccl(folder: Path) -> Iterator[Row]:
    """The collective library's table does not name the operation: of a size's four, the slowest is the all-reduce.

    That holds where the wire decides (``LARGE_MESSAGE``); there the other three, which send equally much, are taken as
    one pattern. Smaller rows cannot be told apart and count for all patterns alike.
    """
    frame = _frame(folder, "collective_nccl")
    if frame is None:
        return
    sizes: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for row in _records(frame[frame.nccl_dtype == "half"]):
        sizes[str(row.gpu), int(row.num_gpus), int(row.message_size)].append(float(row.latency_ms) * 1e-3)
    for (gpu, group, elements), seconds in sizes.items():
        for one in sorted(seconds)[:-1] if elements >= LARGE_MESSAGE else seconds:
            op = _collective("all_gather", float(elements), group)
            yield Row(gpu, "nccl", "NCCL", Measurement(op=op, seconds=one, source="NCCL"))
