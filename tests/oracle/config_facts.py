"""What a config.json states of layers, context and cache, read by rules of its own: no code of the importer is used."""

from __future__ import annotations

from collections import Counter
from typing import Any

NESTED = ("text_config", "llm_config", "language_config")
BLOCKS = {"M": "mamba", "*": "full", "E": "feed-forward", "-": "feed-forward"}
"""Letters of Nemotron-H's pattern."""
TYPES = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "window",
    "chunked_attention": "chunk",
    "linear_attention": "linear",
    "conv": "conv",
    "mamba": "mamba",
}


def text_of(config: dict[str, Any]) -> dict[str, Any]:
    """The part that describes the language model."""
    return next((config[name] for name in NESTED if isinstance(config.get(name), dict)), config)


def kinds_of(config: dict[str, Any]) -> list[str] | None:
    """The kind of mixer of each layer, or ``None`` where no rule here reads it."""
    text = text_of(config)
    if blocks := text.get("layers_block_type"):
        names = {"mamba": "mamba", "attention": "full", "moe": "feed-forward", "mlp": "feed-forward"}
        return [names[block] for block in blocks]
    layers = text.get("num_hidden_layers") or text.get("num_layers") or text.get("n_layer")
    if layers is None or text.get("block_configs") or text.get("linear_attn_config"):
        return None
    if beside := text.get("cross_attention_layers"):  # those that attend to an image stand beside the decoder
        return ["full"] * (layers - len(beside))
    if pattern := text.get("hybrid_override_pattern"):
        return [BLOCKS[letter] for letter in pattern]
    if ratios := text.get("compress_ratios"):
        return [f"one in {ratio}" if ratio else "window" for ratio in ratios[:layers]]
    if windows := text.get("hybrid_layer_pattern"):
        return ["window" if slides else "full" for slides in windows]
    if sparse := (text.get("sparse_attention_config") or {}).get("sparse_attention_freq"):
        return ["blocks" if chosen else "full" for chosen in sparse]
    if text.get("kv_lora_rank"):
        own = text.get("indexer_types") or ["full" if text.get("index_topk") else "none"] * layers
        return ["latent, indexed" if kind == "full" else "latent" for kind in own]
    if types := text.get("layer_types"):
        return [TYPES[kind] for kind in types]
    if every := text.get("full_attention_interval"):
        return ["full" if (index + 1) % every == 0 else "linear" for index in range(layers)]
    if (text.get("model_type") or "").startswith("llama4"):
        return ["chunk" if (index + 1) % 4 else "full" for index in range(layers)]
    every, window = text.get("sliding_window_pattern"), text.get("sliding_window") or 0
    if isinstance(every, str):
        return ["window" if every[index % len(every)] == "L" else "full" for index in range(layers)]
    if every:
        return ["full" if (index + 1) % every == 0 else "window" for index in range(layers)]
    if text.get("model_type") == "gemma2":
        return ["full" if index % 2 else "window" for index in range(layers)]
    slides = window > 0 and text.get(
        "use_sliding_window", text.get("model_type") in ("mistral", "mixtral", "phi3", "phimoe")
    )
    if slides and window < (text.get("max_position_embeddings") or 0):
        return ["window"] * layers
    return ["full"] * layers


def cache_of(config: dict[str, Any], kind: str) -> float | None:
    """Elements that a token adds to the cache of a layer of one kind, or ``None`` where no rule here reads it."""
    text = text_of(config)
    if kind in ("linear", "mamba", "conv", "feed-forward"):
        return 0.0
    if kind.startswith("latent"):
        indexed = text["index_head_dim"] if kind == "latent, indexed" else 0
        return float(text["kv_lora_rank"] + text["qk_rope_head_dim"] + indexed)
    if text.get("attn_layer_period") or text.get("multi_query"):
        return None
    heads = text.get("num_attention_heads") or text.get("n_head")
    width = text.get("hidden_size") or text.get("n_embd")
    if not heads or not width:
        return None
    if text.get("hybrid_layer_pattern") and kind == "window":
        return float(text["swa_num_key_value_heads"] * (text["swa_head_dim"] + text["swa_v_head_dim"]))
    size = text.get("head_dim") or width // heads
    kept, value = text.get("num_key_value_heads") or heads, text.get("v_head_dim") or size
    if kind == "full" and text.get("global_head_dim"):
        kept, size = text.get("num_global_key_value_heads") or kept, text["global_head_dim"]
        value = size
    if kind.startswith("one in "):  # DeepSeek-V4: a window of every layer, and entries of as many tokens
        rate = int(kind.removeprefix("one in "))
        entry = text["head_dim"] + (text["index_head_dim"] if rate == min(filter(None, text["compress_ratios"])) else 0)
        return float(text["head_dim"] + entry / rate)
    if text.get("compress_ratios"):
        return float(text["head_dim"])
    index = text.get("sparse_attention_config", {}).get("sparse_index_dim", 0) if kind == "blocks" else 0
    return float(kept * (size + value) + index)


def facts_of(config: dict[str, Any]) -> dict[str, str] | None:
    """Layers by kind, their number, the context and the elements a token adds, as a row of a table has them."""
    kinds = kinds_of(config)
    if kinds is None:
        return None
    sizes = {kind: cache_of(config, kind) for kind in set(kinds)}
    if None in sizes.values():
        return None
    text, total = text_of(config), sum(size for kind in kinds if (size := sizes[kind]) is not None)
    context = text.get("max_position_embeddings") or text.get("n_positions")
    if text.get("num_kv_shared_layers"):
        return None
    return {
        "layers": "; ".join(f"{count} {kind}" for kind, count in Counter(kinds).items()),
        "context": str(context or ""),
        "kv": f"{total:g}" if total != int(total) else str(int(total)),
    }
