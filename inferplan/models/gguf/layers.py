"""Layers from the tensors of a GGUF block: what is there, and how large, says which parts a layer has."""

from __future__ import annotations

from typing import Any

from inferplan.errors import SpecError
from inferplan.models.gguf.metadata import LayerTensors, Metadata
from inferplan.models.huggingface.dialect import Dialect, Layer

Part = dict[str, Any]


def layer(block: LayerTensors, metadata: Metadata, dialect: Dialect, activation: str) -> Layer:
    """One layer as a YAML writes it; its window is the caller's. Raises ``SpecError`` for what is not understood."""
    try:
        return _layer(block, metadata, dialect, activation)
    except (IndexError, ValueError, ZeroDivisionError):  # a vector for a matrix, no heads
        raise SpecError(
            f"{block.name}: the tensors of blk.{block.index} are not understood",
            because="one has another number of dimensions than its name says, or the file states 0 of its parts",
        ) from None


def _layer(block: LayerTensors, metadata: Metadata, dialect: Dialect, activation: str) -> Layer:
    width = metadata.need("embedding_length")
    mixer = _mixer(block, metadata, dialect)
    dense = _dense(block, width, activation) if block.has("ffn_up") else None
    sparse = _sparse(block, metadata, activation) if block.has("ffn_gate_inp") else None
    found: Layer = {}
    if mixer:
        found["mixer"] = mixer
    if dense or sparse:
        found["ffn"] = dense or sparse
    extras: list[Part] = [sparse] if dense and sparse else []
    if block.has("inp_gate"):
        block.weight("proj")
        block.weight("post_norm")
        extras.append({"kind": "per_layer_input", "width": block.weight("inp_gate")[1]})
    if extras:
        found["extras"] = extras
    norms = block.norms(width)
    if norms != bool(mixer) + bool(dense or sparse):
        found["norms"] = norms
    if dialect.parallel or metadata.get("use_parallel_residual"):
        found["parallel"] = True
    block.finish()
    return found


def _mixer(block: LayerTensors, metadata: Metadata, dialect: Dialect) -> Part | None:
    mixers = []
    if block.has("ssm_conv1d"):
        delta = block.has("ssm_ba") or block.has("ssm_beta")
        build = _delta if delta else _mamba1 if block.has("ssm_x") else _mamba2
        mixers.append(build(block, metadata))
    if block.has("attn_kv_a_mqa"):
        mixers.append(_latent(block, metadata))
    elif block.has("attn_output"):
        mixers.append(_attention(block, metadata, dialect))
    return {"kind": "parallel", "mixers": mixers} if len(mixers) > 1 else mixers[0] if mixers else None


def _attention(block: LayerTensors, metadata: Metadata, dialect: Dialect) -> Part:
    """Heads from the metadata, their width from the matrices."""
    index, width = block.index, metadata.need("embedding_length")
    heads = metadata.need("attention.head_count", index)
    kv_heads = metadata.optional("attention.head_count_kv", index) or heads
    part: Part = {
        "kind": "attention",
        "heads": heads,
        "kv_heads": kv_heads,
        "rotary": dialect.rotary,
        **dialect.attention,
    }
    rows = block.weight("attn_output")[0]
    if block.has("attn_qkv"):
        total = block.weight("attn_qkv")[1]
        part["head_dim"] = metadata.optional("attention.key_length") or width // heads
        if total != part["head_dim"] * (heads + 2 * kv_heads):
            raise SpecError(f"{block.name}: blk.{index}.attn_qkv has {total} rows, not those of its heads")
        part["qkv_bias"] = block.bias("attn_qkv")
    else:
        queries = block.weight("attn_q")[1]
        part |= {"head_dim": rows // heads, "qkv_bias": block.bias("attn_q", "attn_k", "attn_v")}
        if block.has("attn_k"):
            part["head_dim"] = block.weight("attn_k")[1] // kv_heads
            part["value_from_key"] = not block.has("attn_v")
            if block.has("attn_v") and (value := block.weight("attn_v")[1] // kv_heads) != part["head_dim"]:
                part["value_dim"] = value
        else:
            part["shares_cache"] = True
        part["output_gate"] = queries == heads * part["head_dim"] + rows
        if not part["output_gate"] and queries != heads * part["head_dim"]:
            raise SpecError(f"{block.name}: blk.{index}.attn_q has {queries} rows, not those of {heads} heads")
    part["out_bias"] = block.bias("attn_output")
    part["qk_norm"] = _norm_of_keys(block, heads, kv_heads, int(part["head_dim"]), bool(part.get("shares_cache")))
    part["sinks"] = part.get("sinks", False) or block.has("attn_sinks")
    if block.has("attn_sinks"):
        block.weight("attn_sinks")
    return part


def _norm_of_keys(block: LayerTensors, heads: int, kv_heads: int, head_dim: int, shared: bool) -> str:
    if not block.has("attn_q_norm"):
        return "none"
    queries = block.weight("attn_q_norm")
    keys = None if shared else block.weight("attn_k_norm")
    if queries == (head_dim,) and keys in (None, (head_dim,)):
        return "head"
    if queries == (heads * head_dim,) and keys in (None, (kv_heads * head_dim,)):
        return "full"
    if queries == (head_dim, heads) and keys in (None, (head_dim, kv_heads)):
        return "per_head"
    raise SpecError(f"{block.name}: blk.{block.index}.attn_q_norm has the shape {queries}, of no norm that is known")


def _latent(block: LayerTensors, metadata: Metadata) -> Part:
    heads = metadata.need("attention.head_count", block.index)
    latent = block.weight("attn_kv_a_norm")[0]
    rope = block.weight("attn_kv_a_mqa")[1] - latent
    value = block.weight("attn_output")[0] // heads
    part: Part = {"kind": "mla", "heads": heads, "kv_lora": latent, "rope_dim": rope, "value_dim": value}
    if block.has("attn_q_a"):
        part["q_lora"] = block.weight("attn_q_a")[1]
        block.weight("attn_q_a_norm")
    query = block.weight("attn_q_b" if block.has("attn_q_a") else "attn_q")[1] // heads
    part["nope_dim"] = query - rope
    for name in ("attn_kv_b",) if block.has("attn_kv_b") else ("attn_k_b", "attn_v_b"):
        block.weight(name)
    if block.has("indexer.attn_k"):
        keys = block.weight("indexer.attn_k")[1]
        part["indexer"] = {
            "heads": block.weight("indexer.proj")[1],
            "head_dim": keys,
            "top_k": metadata.need("attention.indexer.top_k"),
        }
        block.weight("indexer.attn_q_b")
        block.weight("indexer.k_norm")
        block.take("indexer.k_norm.bias")
    return part


def _mamba1(block: LayerTensors, metadata: Metadata) -> Part:
    inner = block.weight("ssm_in")[1] // 2
    part: Part = {
        "kind": "mamba1",
        "inner": inner,
        "state": metadata.need("ssm.state_size"),
        "dt_rank": metadata.need("ssm.time_step_rank"),
        "taps": block.weight("ssm_conv1d")[0],
        "bias": block.bias("ssm_in", "ssm_out"),
        "conv_bias": block.take("ssm_conv1d.bias") is not None,
    }
    if block.has("ssm_dt_norm"):
        part["inner_norms"] = "rms"
        for name in ("ssm_dt_norm", "ssm_b_norm", "ssm_c_norm"):
            block.weight(name)
    elif metadata.get("ssm.dt_b_c_rms"):
        part["inner_norms"] = "plain"
    block.read |= {"ssm_x.weight", "ssm_dt.weight", "ssm_dt.bias", "ssm_a", "ssm_d", "ssm_out.weight"}
    return part


def _mamba2(block: LayerTensors, metadata: Metadata) -> Part:
    heads, inner = metadata.need("ssm.time_step_rank"), metadata.need("ssm.inner_size")
    part: Part = {
        "kind": "mamba2",
        "heads": heads,
        "head_dim": inner // heads,
        "state": metadata.need("ssm.state_size"),
        "groups": metadata.optional("ssm.group_count") or 1,
        "taps": block.weight("ssm_conv1d")[0],
        "bias": block.bias("ssm_in", "ssm_out"),
        "conv_bias": block.take("ssm_conv1d.bias") is not None,
        "gated_norm": block.has("ssm_norm"),
    }
    block.read |= {"ssm_in.weight", "ssm_dt.bias", "ssm_a", "ssm_d", "ssm_norm.weight", "ssm_out.weight"}
    return part


def _delta(block: LayerTensors, metadata: Metadata) -> Part:
    heads, inner = metadata.need("ssm.time_step_rank"), metadata.need("ssm.inner_size")
    part: Part = {
        "kind": "gated_delta_net",
        "key_heads": metadata.need("ssm.group_count"),
        "value_heads": heads,
        "key_dim": metadata.need("ssm.state_size"),
        "value_dim": inner // heads,
        "taps": block.weight("ssm_conv1d")[0],
    }
    projections = ("attn_qkv", "attn_gate", "ssm_in", "ssm_ba", "ssm_beta", "ssm_alpha", "ssm_norm", "ssm_out")
    block.read |= {f"{name}.weight" for name in projections if block.has(name)} | {"ssm_dt.bias", "ssm_a"}
    return part


def _dense(block: LayerTensors, width: int, activation: str) -> Part:
    """Gate and up as two matrices, or as one of twice the rows (Phi-3, GLM-4)."""
    columns, rows = block.weight("ffn_down")[0], block.weight("ffn_up")[1]
    gated = block.has("ffn_gate")
    if gated:
        block.weight("ffn_gate")
    if rows not in (columns, 2 * columns) or (gated and rows != columns):
        raise SpecError(f"{block.name}: blk.{block.index}.ffn_up has {rows} rows for {columns} columns of ffn_down")
    bias = block.bias("ffn_gate", "ffn_up", "ffn_down")
    return {"kind": "mlp", "d_ff": columns, "gated": gated or rows != columns, "bias": bias, "activation": activation}


def _sparse(block: LayerTensors, metadata: Metadata, activation: str) -> Part:
    """Routed experts, each a slice of a matrix of three dimensions, and what all tokens share."""
    columns, latent, experts = block.weight("ffn_down_exps")
    fused = block.has("ffn_gate_up_exps")
    gated = fused or block.has("ffn_gate_exps")
    for name in ("ffn_gate_up_exps",) if fused else ("ffn_gate_exps", "ffn_up_exps") if gated else ("ffn_up_exps",):
        block.weight(name)
    block.weight("ffn_gate_inp")
    scaled = block.take("ffn_gate_inp.scale") is not None
    block.take("ffn_down_exps.scale")
    part: Part = {
        "kind": "moe",
        "experts": experts,
        "top_k": metadata.need("expert_used_count", block.index),
        "d_ff": columns,
        "gated": gated,
        "activation": activation,
        "router_scales": scaled,
        "router_bias": block.bias("ffn_gate_inp"),
        "expert_bias": block.bias("ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps", "ffn_down_exps"),
    }
    if latent != metadata.need("embedding_length"):
        part["latent"] = latent
        block.weight("ffn_latent_down")
        block.weight("ffn_latent_up")
    if block.has("ffn_down_shexp"):
        part["shared_d_ff"] = block.weight("ffn_down_shexp")[0]
        for name in ("ffn_gate_shexp", "ffn_up_shexp"):
            if block.has(name):
                block.weight(name)
        part["shared_gate"] = block.has("ffn_gate_inp_shexp")
        if part["shared_gate"]:
            block.weight("ffn_gate_inp_shexp")
    groups, top = metadata.optional("expert_group_count") or 1, metadata.optional("expert_group_used_count") or 1
    return part | ({"groups": groups, "top_groups": top} if groups > 1 else {})
