"""Fields that the config classes of transformers 5.23 fill in, where absence would otherwise mean something else here.

Query latents, KV heads, biases, norms: none of it, or as many as of something else. Such a field must be stated; null
is a statement. What its class takes stands beside it.
"""

from __future__ import annotations

STATED: dict[str, dict[str, int | float | str]] = {
    "afmoe": {"num_shared_experts": 2},
    "axk1": {"q_lora_rank": 1536},
    "bitnet": {"num_key_value_heads": 5},
    "ctrl": {"dff": 8192},
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
    "granite_docling_text": {"num_key_value_heads": 4},
    "granite_swa": {"num_key_value_heads": 4},
    "granitemoehybrid": {"num_local_experts": 8},
    "hyperclovax": {"use_post_norm": True},
    "iquestcoder": {"num_key_value_heads": 8},
    "kolibri1": {"shared_expert_intermediate_size": 512},
    "laguna": {"gating": True, "shared_expert_intermediate_size": 512},
    "led": {"max_encoder_position_embeddings": 16384},
    "lfm2": {"block_auto_adjust_ff_dim": True},
    "lfm3": {"use_attention_gate": True, "use_sandwich_norm": True},
    "longcat_flash": {"q_lora_rank": 1536, "zero_expert_num": 256},
    "minicpm3": {"q_lora_rank": 768},
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
