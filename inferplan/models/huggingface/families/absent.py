"""Fields that the config classes of transformers 5.23 fill in, where absence would otherwise mean something else here.

Query latents, KV heads, biases, norms, windows: none of it, or as many as of something else. Such a field must be
stated; null is a statement. What its class takes stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inferplan.models.huggingface.reader import LAYERS, Reader

STATED: dict[str, dict[str, int | float | str]] = {
    "afmoe": {"num_shared_experts": 2},
    "axk1": {"q_lora_rank": 1536},
    "bailing_hybrid": {"num_shared_experts": 1},
    "bitnet": {"num_key_value_heads": 5},
    "cosmos3_edge_text": {"head_dim": 128},
    "deepseek_v2": {"q_lora_rank": 1536},
    "deepseek_v3": {"q_lora_rank": 1536},
    "deepseek_v4": {"num_nextn_predict_layers": 1},
    "ernie4_5": {"num_key_value_heads": 2},
    "ernie4_5_moe": {"moe_num_shared_experts": 2},
    "ernie4_5_vl_moe_text": {"moe_num_shared_experts": 2},
    "falcon_h1": {"num_key_value_heads": 8},
    "flint": {"shared_expert_intermediate_size": 1024},
    "glm": {"attention_bias": True},
    "glm4": {"attention_bias": True},
    "glm4_moe_lite": {"q_lora_rank": 768},
    "gpt_neox": {"intermediate_size": 24576},
    "granite_docling_text": {"num_key_value_heads": 4},
    "granite_swa": {"num_key_value_heads": 4},
    "granitemoehybrid": {"num_local_experts": 8},
    "hyperclovax": {"use_post_norm": True},
    "internlm3": {"head_dim": 128},
    "iquestcoder": {"num_key_value_heads": 8},
    "kolibri1": {"shared_expert_intermediate_size": 512},
    "laguna": {"gating": True, "shared_expert_intermediate_size": 512},
    "lfm2": {"block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256},
    "lfm3": {"use_attention_gate": True, "use_sandwich_norm": True},
    "llama4_text": {"attention_chunk_size": 8192},
    "longcat_flash": {"q_lora_rank": 1536, "zero_expert_num": 256},
    "minicpm3": {"q_lora_rank": 768},
    "mistral": {"sliding_window": 4096},
    "mistral4": {"q_lora_rank": 1024},
    "paddleocr_vl_text": {"num_key_value_heads": 2},
    "phi4_multimodal": {"num_key_value_heads": 8},
    "qwen2_moe": {"shared_expert_intermediate_size": 5632},
    "qwen3_5_moe_text": {"shared_expert_intermediate_size": 512},
    "qwen3_next": {"shared_expert_intermediate_size": 512},
    "seed_oss": {"attention_bias": True},
    "solar_open": {"n_shared_experts": 1},
    "step3p5": {"share_expert_dim": 1280},
    "youtu": {"q_lora_rank": 1536},
}

UNCOUNTED: dict[str, dict[str, int]] = {
    "deepseek_v3": {"num_nextn_predict_layers": 1},
    "glm4_moe": {"num_nextn_predict_layers": 1},
}
"""Prediction modules, which no class of transformers builds: absence is none of them, and a note says so."""

WRITTEN: dict[str, dict[str, Callable[[int], list[Any]]]] = {
    "flint": {"mlp_only_layers": lambda layers: [0, 1]},
    "hy_v4": {"indexer_types": lambda layers: ["shared" if i and (i - 1) % 4 else "full" for i in range(layers)]},
    "laguna": {"mlp_layer_types": lambda layers: ["dense"] + ["sparse"] * (layers - 1)},
}
"""Lists that a class writes by its number of layers where the config leaves them out or says null."""


def absent(r: Reader) -> list[str]:
    """What the config leaves out: notes of what is taken for it. Raises ``SpecError`` for what must be stated."""
    kind = str(r.get("model_type"))
    for name, taken in STATED.get(kind, {}).items():
        if name not in r.config:
            because = f"it is absent: its class takes {taken}, which is not what its absence says"
            raise r.refuse(name, because, hint=f"write the value of the checkpoint: {taken}, or null for none")
    notes = [
        f"{name} is not in the config: none is counted, and its class says {said}"
        for name, said in UNCOUNTED.get(kind, {}).items()
        if name not in r.config
    ]
    for name, rule in WRITTEN.get(kind, {}).items():
        if r.config.get(name) is None:
            r.config[name] = rule(r.integer(*LAYERS))
            notes.append(f"{name} is not in the config: the rule of its class")
    return notes
