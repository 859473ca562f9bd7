"""Modules of DeepSeek-V4, MiniMax-M3 and Kimi-K3 as engines ran them: rows of the tables as the operators of a layer.

Layers are those of one rank. DeepSeek-V4-Flash has the shapes of transformers' default config; the rows of V4-Pro are
left out, whose config was not at hand when the comparison was made, and so are TensorRT-LLM's of MiniMax-M3
on devices for which it has no kernel (``default``: up to 46 s a module).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from inferplan.models.layers import LayerContext, LayerSpec, parse_layer
from inferplan.work.formats import Precision, find_format, uniform
from inferplan.work.ops import Op
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Segment
from tools.fitting.tables.modules import GEMM, newest

COMPRESSED = tuple(f"dsv4_{kind}_{phase}_module" for kind in ("csa", "hca") for phase in ("context", "generation"))
BLOCKS = ("msa_context_module", "msa_generation_module")
LOGITS = "dsv4_paged_mqa_logits_module"
ALONE = ("dsv4_hca_attn_module", LOGITS)
"""Kernels of DeepSeek-V4's attention timed by themselves."""
HYPER, DELTA = "mhc_module", "kda"
TABLES = (*COMPRESSED, *BLOCKS, *ALONE, HYPER, DELTA)
FLASH = {"kind": "compressed_attention", "head_dim": 512, "rope_dim": 64, "q_lora": 1024, "window": 128}
"""transformers 5.23, ``DeepseekV4Config``, whose checkpoint is DeepSeek-V4-Flash."""
CHOICE = {"heads": 64, "head_dim": 128, "top_k": 512, "format": "fp8-token-head"}
HEADS, GROUPS, RANK, WIDTH = 64, 8, 1024, 4096
M3_WIDTH, SHARING = 6144, 16
"""MiniMax-M3's width, and query heads to a key head."""


def mechanism_rows(folder: Path) -> pd.DataFrame:
    """Rows of the newest release of each framework and GPU: ``table``, ``isl`` (new tokens), ``step`` (cached ones)."""
    frames = []
    for name in TABLES:
        file = folder / "releases" / f"{name}.csv.gz"
        if file.is_file():
            frames.append(_named(pd.read_csv(file).assign(table=name)))
    rows = pd.concat(frames, ignore_index=True)
    rows["framework"] = rows.framework.str.lower()
    pro = rows.model.astype(str).str.contains("Pro") & (rows.table != HYPER)
    rows = rows[~pro & ~rows.kernel_source.isin(["default"]) & (rows.gpu != "l40s")]
    return newest(rows).assign(seconds=lambda frame: frame.latency_ms * 1e-3)


def _named(rows: pd.DataFrame) -> pd.DataFrame:
    """Columns that not every table has."""
    if "isl" not in rows:
        rows = rows.assign(isl=rows["seq_len" if "seq_len" in rows else "num_tokens"], step=0)
    absent: dict[str, Any] = {
        "batch_size": 1,
        "num_heads": 0,
        "hidden_size": 0,
        "gemm_type": "bfloat16",
        "kv_cache_dtype": "bfloat16",
    }
    rows = rows.assign(**{name: value for name, value in absent.items() if name not in rows})
    if "num_k_heads" in rows:
        rows = rows.assign(num_heads=rows["num_k_heads"], model=rows["model_name"])
    return rows


def layer_of(row: Any) -> tuple[LayerSpec, int]:
    """The layer of a row on one rank, and the model's width."""
    heads = int(row.num_heads)
    if row.table == HYPER:
        return parse_layer({"kind": "hyper_connection", "streams": 4}), int(row.hidden_size)
    if row.table == DELTA:
        return parse_layer({"kind": "kimi_delta", "heads": heads, "head_dim": 128}), 7168
    if row.table in BLOCKS:
        keys = max(1, heads // SHARING)
        index = {"heads": keys, "head_dim": 128, "block": 128, "top_blocks": 16}
        sizes = {"heads": heads, "kv_heads": keys, "head_dim": 128, "qk_norm": "head", "indexer": index}
        return parse_layer({"kind": "block_sparse_attention", **sizes}), M3_WIDTH
    groups = max(1, GROUPS * heads // HEADS)
    sizes = FLASH | {"heads": heads, "groups": groups, "group_rank": RANK}
    if int(row.compress_ratio) == 128:
        return parse_layer(sizes | {"pool": {"rate": 128}}), WIDTH
    return parse_layer(sizes | {"pool": {"rate": 4, "overlap": True}, "indexer": CHOICE}), WIDTH


def precision_of(row: Any) -> Precision:
    """The formats of a row."""
    weights, inputs = map(find_format, GEMM[row.gemm_type])
    kv = find_format("fp8" if str(row.kv_cache_dtype).startswith("fp8") else "bf16")
    return replace(uniform(), weights=weights, activations=inputs, kv=kv)


def timed(row: Any, name: str) -> bool:
    """Whether an operator of the layer is part of what a row times."""
    if row.table == HYPER:
        return name == "hyper.expand" if "post" in row.kernel_source else name in ("hyper.mix", "hyper.collapse")
    if row.table == DELTA:
        return name == ("kda.conv" if "conv" in row.kernel_source else "kda.scan")
    if row.table == "dsv4_hca_attn_module":
        return name == "attn.core"
    return row.table != LOGITS or name == "attn.index.select"


def mechanism_ops(row: Any, segment: Segment, peaks: frozenset[str] | None = None) -> list[Op]:
    """The operators that a row times, for a segment; ``peaks``: the arithmetic that the device has."""
    layer, width = layer_of(row)
    context = LayerContext(
        d_model=width, precision=precision_of(row), parallel=Parallelism(), segments=(segment,), peaks=peaks
    )
    return [op for op in layer.ops(context) if timed(row, op.name)]
