"""GGUF metadata as a config: the architectures whose tensors are those of a known family."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import Any

from inferplan.errors import SpecError
from inferplan.models.checkpoint import Checkpoint
from inferplan.models.huggingface.quantisation import exceptions

_PLACE = re.compile(r"blk\.(?P<layer>\d+)\.(?P<name>\w+)\.weight")
_TENSORS = {"attn_q": ["q"], "attn_k": ["k"], "attn_v": ["v"], "attn_output": ["o"], "attn_qkv": ["q", "k", "v"]}
_TENSORS |= {f"ffn_{name}": [name] for name in ("gate", "up", "down")}
_TENSORS |= {f"ffn_{name}_exps": [f"expert.{name}"] for name in ("gate", "up", "down")}
_TENSORS |= {f"ffn_{name}_shexp": [f"shared.{name}"] for name in ("gate", "up", "down")}
_WIDE = ["norm", "final_norm", "q_norm", "k_norm", "q.bias", "k.bias", "v.bias", "router"]
"""Norms, biases and routers: float32 in every file that llama.cpp converts."""
_FORMATS = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}
_FAMILIES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3moe": "qwen3_moe", "phi3": "phi3"}
_FAMILIES |= {"gemma": "gemma", "gemma2": "gemma2", "mistral": "mistral"}


def config_of(checkpoint: Checkpoint, metadata: dict[str, Any], name: str) -> dict[str, Any]:
    """A config with the numbers of the metadata. Raises ``SpecError`` for an architecture that is not known."""
    kind = metadata.get("general.architecture")
    if kind not in _FAMILIES:
        raise SpecError(
            f"{name}: general.architecture = {kind!r} is not understood",
            because=f"GGUF files of {', '.join(_FAMILIES)} are",
            hint="give the model by name; the file's bytes are exact all the same",
        )

    def field(key: str, needed: bool = True) -> Any:
        value = metadata.get(f"{kind}.{key}")
        if value is None and needed:
            raise SpecError(f"{name}: the file has no {kind}.{key}", because="the counts depend on it")
        return value

    by_name = {tensor.name: tensor for tensor in checkpoint.tensors}
    embedding = by_name.get("token_embd.weight")
    if embedding is None:
        raise SpecError(f"{name}: the file has no token_embd.weight", because="the vocabulary size is its length")
    config: dict[str, Any] = {
        "model_type": _FAMILIES[kind],
        "hidden_size": field("embedding_length"),
        "num_hidden_layers": field("block_count"),
        "num_attention_heads": field("attention.head_count"),
        "num_key_value_heads": field("attention.head_count_kv", needed=False) or field("attention.head_count"),
        "intermediate_size": field("feed_forward_length"),
        "max_position_embeddings": field("context_length", needed=False),
        "head_dim": field("attention.key_length", needed=False),
        "vocab_size": embedding.shape[-1],
        "tie_word_embeddings": "output.weight" not in by_name,
        "sliding_window": field("attention.sliding_window", needed=False),
    }
    experts = field("expert_count", needed=False)
    if experts and kind == "llama":
        config |= {"model_type": "mixtral", "num_local_experts": experts}
    elif experts:
        config |= {"num_experts": experts, "moe_intermediate_size": field("expert_feed_forward_length")}
    if experts:
        config["num_experts_per_tok"] = field("expert_used_count")
    if config["model_type"] in ("llama", "qwen2"):
        config["attention_bias"] = "blk.0.attn_q.bias" in by_name or None
    return {key: value for key, value in config.items() if value is not None}


def native_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """The format of each role, the one that most of its bytes are in, and every tensor of a layer that differs."""
    roles: dict[str, Counter[str]] = defaultdict(Counter)
    stored: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    for tensor in checkpoint.tensors:
        fmt = _FORMATS.get(tensor.dtype, tensor.dtype)
        place = _PLACE.fullmatch(tensor.name)
        role = {"token_embd.weight": "embedding", "output.weight": "head"}.get(tensor.name)
        if place is not None and len(tensor.shape) > 1 and place["name"] in _TENSORS:
            role = "experts" if place["name"].endswith("_exps") else "weights"
            for name in _TENSORS[place["name"]]:
                stored[role, name][int(place["layer"])] = fmt
        if role is not None:
            roles[role][fmt] += tensor.size
    native: dict[str, Any] = {role: counts.most_common(1)[0][0] for role, counts in roles.items()} | {"base": "fp16"}
    vectors = {_FORMATS.get(t.dtype, t.dtype) for t in checkpoint.tensors if len(t.shape) == 1}
    wide = [{"tensors": _WIDE, "format": "fp32"}] if vectors == {"fp32"} else []
    return native | {"exceptions": [*exceptions(stored, native), *wide]}
