"""What the config classes of transformers 5.23 say where a language model's table leaves a field out.

Transformers, vLLM and SGLang load such a file with these values. The fields are those without which a config is counted
otherwise than its class reads it, or not at all; ``tests/oracle/test_absent.py`` compares each with its class and finds
those that are missing. A type without a row has no class, or none that an engine serves: its fields must be stated.
"""

from __future__ import annotations

from typing import Any

# fmt: off
CLASS_DEFAULTS: dict[str, dict[str, Any]] = {
    "afmoe": {
        "vocab_size": 200192, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 1408,
        "num_hidden_layers": 32, "num_dense_layers": 1, "num_attention_heads": 16, "head_dim": 128,
        "max_position_embeddings": 16384, "num_experts": 64, "num_experts_per_tok": 6, "num_shared_experts": 2,
        "sliding_window": 1024,
    },
    "apertus": {
        "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 65536,
    },
    "arcee": {
        "vocab_size": 32000, "hidden_size": 2560, "intermediate_size": 18432, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 4096,
    },
    "axk1": {
        "vocab_size": 163840, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "num_hidden_layers": 61, "num_attention_heads": 64, "n_shared_experts": 1, "n_routed_experts": 192,
        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128,
        "num_experts_per_tok": 8, "max_position_embeddings": 32768,
    },
    "bailing_hybrid": {
        "vocab_size": 157184, "hidden_size": 2560, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_hidden_layers": 42, "num_attention_heads": 32, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "qk_nope_head_dim": 128, "num_shared_experts": 1, "model_max_length": 262144,
        "num_experts": 512,
    },
    "bamba": {
        "vocab_size": 128000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 262144, "mamba_n_heads": 128, "mamba_n_groups": 1,
        "mamba_d_state": 256, "mamba_d_conv": 4,
    },
    "bert": {
        "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "max_position_embeddings": 512, "type_vocab_size": 2,
    },
    "bitnet": {
        "vocab_size": 128256, "hidden_size": 2560, "intermediate_size": 6912, "num_hidden_layers": 30,
        "num_attention_heads": 20, "num_key_value_heads": 5, "max_position_embeddings": 2048,
    },
    "bloom": {"vocab_size": 250880, "hidden_size": 64, "n_layer": 2, "n_head": 8},
    "codegen": {"vocab_size": 50400, "n_positions": 2048, "n_embd": 4096, "n_layer": 28, "n_head": 16},
    "cohere": {
        "vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528, "num_hidden_layers": 40,
        "num_attention_heads": 64, "max_position_embeddings": 8192,
    },
    "cohere2": {
        "vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528, "num_hidden_layers": 40,
        "num_attention_heads": 64, "max_position_embeddings": 8192, "sliding_window": 4096,
    },
    "cohere2_moe": {
        "vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528, "num_hidden_layers": 40,
        "num_attention_heads": 64, "head_dim": 128, "max_position_embeddings": 8192, "sliding_window": 4096,
        "num_experts_per_tok": 2, "num_experts": 8,
    },
    "cosmos3_edge_text": {
        "vocab_size": 131072, "hidden_size": 2048, "intermediate_size": 9216, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "max_position_embeddings": 131072, "head_dim": 128,
    },
    "cwm": {
        "vocab_size": 128256, "hidden_size": 6144, "intermediate_size": 21504, "num_hidden_layers": 64,
        "num_attention_heads": 48, "num_key_value_heads": 8, "max_position_embeddings": 131072, "head_dim": 128,
        "sliding_window": 8192,
    },
    "dbrx": {"d_model": 2048, "n_heads": 16, "n_layers": 24, "max_seq_len": 2048, "vocab_size": 32000},
    "deepseek_v2": {
        "vocab_size": 102400, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "max_position_embeddings": 2048, "first_k_dense_replace": 0, "kv_lora_rank": 512, "q_lora_rank": 1536,
        "n_routed_experts": 64, "n_shared_experts": 2, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "moe_intermediate_size": 1407,
    },
    "deepseek_v3": {
        "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "num_hidden_layers": 61, "num_attention_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256,
        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128,
        "num_experts_per_tok": 8, "first_k_dense_replace": 3, "max_position_embeddings": 4096,
    },
    "deepseek_v32": {
        "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "num_hidden_layers": 61, "num_attention_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256,
        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128,
        "num_experts_per_tok": 8, "max_position_embeddings": 163840, "index_topk": 2048, "index_head_dim": 128,
        "index_n_heads": 64,
    },
    "deepseek_v4": {
        "vocab_size": 129280, "hidden_size": 4096, "moe_intermediate_size": 2048, "num_hidden_layers": 43,
        "num_attention_heads": 64, "head_dim": 512, "q_lora_rank": 1024, "num_experts_per_tok": 6,
        "n_routed_experts": 256, "max_position_embeddings": 1048576, "hc_mult": 4, "sliding_window": 128, "o_groups": 8,
        "o_lora_rank": 1024, "index_n_heads": 64, "index_head_dim": 128, "index_topk": 512,
        "num_nextn_predict_layers": 1, "hc_sinkhorn_iters": 20,
    },
    "dots1": {
        "vocab_size": 152064, "hidden_size": 4608, "moe_intermediate_size": 1408, "num_hidden_layers": 62,
        "num_attention_heads": 32, "num_key_value_heads": 32, "first_k_dense_replace": 0,
        "max_position_embeddings": 2048,
    },
    "ernie4_5": {
        "vocab_size": 103424, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 18,
        "num_attention_heads": 16, "num_key_value_heads": 2, "max_position_embeddings": 131072, "head_dim": 128,
    },
    "ernie4_5_moe": {
        "vocab_size": 103424, "hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 28,
        "num_attention_heads": 20, "num_key_value_heads": 4, "max_position_embeddings": 131072,
        "moe_intermediate_size": 1536, "moe_k": 6, "moe_num_experts": 64, "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
    },
    "ernie4_5_vl_moe_text": {
        "vocab_size": 103424, "hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 28,
        "num_attention_heads": 20, "num_key_value_heads": 4, "max_position_embeddings": 131072, "moe_k": 6,
        "moe_num_experts": 64, "moe_num_shared_experts": 2,
    },
    "exaone4": {
        "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 2048, "sliding_window": 4096,
    },
    "exaone_moe": {
        "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 2048, "sliding_window": 4096,
        "moe_intermediate_size": 1024, "num_experts": 64, "num_experts_per_tok": 8, "num_shared_experts": 1,
    },
    "falcon": {
        "vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
        "max_position_embeddings": 2048,
    },
    "falcon_h1": {
        "vocab_size": 128000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192, "mamba_d_ssm": 1024,
        "mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4,
    },
    "falcon_mamba": {
        "vocab_size": 50280, "hidden_size": 768, "state_size": 16, "num_hidden_layers": 32, "conv_kernel": 4,
    },
    "flex_olmo": {
        "vocab_size": 100352, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 4096, "num_experts_per_tok": 5, "num_experts": 7,
    },
    "flint": {
        "vocab_size": 150144, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 49,
        "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 262144, "sliding_window": 513,
        "moe_intermediate_size": 512, "shared_expert_intermediate_size": 1024, "num_experts_per_tok": 6,
        "num_experts": 256, "head_dim": 128,
    },
    "gemma": {
        "vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256, "max_position_embeddings": 8192,
    },
    "gemma2": {
        "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192,
        "sliding_window": 4096,
    },
    "gemma3_text": {
        "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_size": 2304,
        "intermediate_size": 9216, "num_hidden_layers": 26, "max_position_embeddings": 131072, "sliding_window": 4096,
    },
    "gemma3n_text": {
        "vocab_size": 262400, "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 35,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 32768,
        "sliding_window": 512, "vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256,
        "altup_num_inputs": 4, "num_kv_shared_layers": 15, "laurel_rank": 64,
    },
    "gemma4_text": {
        "vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072,
        "sliding_window": 512, "vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256,
    },
    "glm": {
        "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 40,
        "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072,
        "attention_bias": True,
    },
    "glm4": {
        "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 40,
        "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072,
        "attention_bias": True,
    },
    "glm4_moe": {
        "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46,
        "num_attention_heads": 96, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "moe_intermediate_size": 1408, "num_experts_per_tok": 8, "n_shared_experts": 1, "n_routed_experts": 128,
        "first_k_dense_replace": 1,
    },
    "glm4_moe_lite": {
        "vocab_size": 154880, "hidden_size": 2048, "intermediate_size": 10240, "moe_intermediate_size": 1536,
        "num_hidden_layers": 47, "num_attention_heads": 20, "n_shared_experts": 1, "n_routed_experts": 64,
        "kv_lora_rank": 512, "q_lora_rank": 768, "qk_rope_head_dim": 64, "v_head_dim": 256, "qk_nope_head_dim": 192,
        "num_experts_per_tok": 4, "max_position_embeddings": 202752,
    },
    "glm4v_moe_text": {
        "vocab_size": 151424, "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46,
        "num_attention_heads": 96, "num_key_value_heads": 8, "max_position_embeddings": 65536,
        "moe_intermediate_size": 1408, "num_experts_per_tok": 8, "n_shared_experts": 1, "n_routed_experts": 128,
        "first_k_dense_replace": 1,
    },
    "glm4v_text": {
        "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 40,
        "num_attention_heads": 32, "num_key_value_heads": 2, "max_position_embeddings": 32768,
    },
    "glm_moe_dsa": {
        "vocab_size": 154880, "hidden_size": 6144, "intermediate_size": 12288, "moe_intermediate_size": 2048,
        "num_hidden_layers": 78, "num_attention_heads": 64, "n_shared_experts": 1, "n_routed_experts": 256,
        "kv_lora_rank": 512, "q_lora_rank": 2048, "qk_rope_head_dim": 64, "v_head_dim": 256, "qk_nope_head_dim": 192,
        "num_experts_per_tok": 8, "max_position_embeddings": 202752, "index_topk": 2048, "index_head_dim": 128,
        "index_n_heads": 32,
    },
    "gpt2": {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12},
    "gpt_bigcode": {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12},
    "gpt_neox": {
        "vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64,
        "intermediate_size": 24576, "max_position_embeddings": 2048,
    },
    "gpt_oss": {
        "num_hidden_layers": 36, "num_local_experts": 128, "vocab_size": 201088, "hidden_size": 2880,
        "intermediate_size": 2880, "head_dim": 64, "num_attention_heads": 64, "num_key_value_heads": 8,
        "sliding_window": 128, "num_experts_per_tok": 4,
    },
    "gptj": {"vocab_size": 50400, "n_positions": 2048, "n_embd": 4096, "n_layer": 28, "n_head": 16},
    "granite": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 2048,
    },
    "granite_docling_text": {
        "vocab_size": 133800, "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 32768,
    },
    "granite_swa": {
        "vocab_size": 100352, "hidden_size": 2560, "intermediate_size": 8192, "num_hidden_layers": 24,
        "num_attention_heads": 20, "num_key_value_heads": 4, "max_position_embeddings": 8192, "sliding_window": 128,
    },
    "granitemoe": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 2048, "num_local_experts": 8, "num_experts_per_tok": 2,
    },
    "granitemoehybrid": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 2048, "num_local_experts": 8, "num_experts_per_tok": 2,
        "shared_intermediate_size": 1024, "mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256,
        "mamba_d_conv": 4,
    },
    "granitemoeshared": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 2048, "num_local_experts": 8, "num_experts_per_tok": 2,
    },
    "helium": {
        "vocab_size": 48000, "hidden_size": 2560, "intermediate_size": 7040, "num_hidden_layers": 24,
        "num_attention_heads": 20, "max_position_embeddings": 4096,
    },
    "hunyuan_v1_dense": {
        "vocab_size": 290943, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 2048,
    },
    "hunyuan_v1_moe": {
        "vocab_size": 290943, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 2048, "num_experts": 1, "moe_topk": 1,
    },
    "hy_v3": {
        "vocab_size": 120832, "hidden_size": 4096, "intermediate_size": 13312, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072,
        "num_experts": 192, "num_experts_per_tok": 8, "num_shared_experts": 1, "moe_intermediate_size": 1536,
    },
    "hyperclovax": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 2048, "use_post_norm": True,
    },
    "internlm3": {
        "vocab_size": 128512, "hidden_size": 4096, "intermediate_size": 10240, "num_hidden_layers": 48,
        "num_attention_heads": 32, "num_key_value_heads": 2, "max_position_embeddings": 32768, "head_dim": 128,
    },
    "iquestcoder": {
        "vocab_size": 76800, "hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 80,
        "num_attention_heads": 40, "num_key_value_heads": 8, "max_position_embeddings": 131072, "head_dim": 128,
    },
    "jais2": {
        "vocab_size": 150272, "hidden_size": 3328, "intermediate_size": 26624, "num_hidden_layers": 32,
        "num_attention_heads": 26, "max_position_embeddings": 8192,
    },
    "jamba": {
        "vocab_size": 65536, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 262144,
        "num_experts_per_tok": 2, "num_experts": 16, "expert_layer_period": 2, "expert_layer_offset": 1,
        "attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2,
    },
    "kimi_linear": {
        "vocab_size": 163840, "hidden_size": 2304, "intermediate_size": 9216, "moe_intermediate_size": 1024,
        "num_hidden_layers": 27, "num_attention_heads": 32, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "qk_nope_head_dim": 128, "linear_head_dim": 128, "linear_num_heads": 32,
        "linear_conv_kernel_dim": 4, "num_shared_experts": 1, "model_max_length": 1048576, "num_experts": 256,
    },
    "kolibri1": {
        "vocab_size": 128000, "hidden_size": 2560, "num_hidden_layers": 50, "num_attention_heads": 48,
        "num_key_value_heads": 4, "max_position_embeddings": 262144, "sliding_window": 513,
        "moe_intermediate_size": 512, "num_experts_per_tok": 6, "head_dim": 128, "shared_expert_intermediate_size": 512,
        "num_local_experts": 384,
    },
    "laguna": {
        "vocab_size": 100352, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 40,
        "num_attention_heads": 48, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts_per_tok": 8,
        "num_experts": 256, "head_dim": 128, "gating": True,
    },
    "lfm2": {
        "vocab_size": 65536, "hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 128000, "conv_L_cache": 3,
        "block_multiple_of": 256, "block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0,
    },
    "lfm2_moe": {
        "vocab_size": 65536, "hidden_size": 2048, "intermediate_size": 7168, "moe_intermediate_size": 1792,
        "max_position_embeddings": 128000, "num_attention_heads": 32, "num_key_value_heads": 8, "conv_L_cache": 3,
        "num_dense_layers": 2, "num_experts_per_tok": 4, "num_experts": 32,
    },
    "lfm3": {
        "vocab_size": 128000, "hidden_size": 2048, "intermediate_size": 7680, "num_hidden_layers": 24,
        "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 128000, "conv_L_cache": 7,
        "head_dim": 128, "sliding_window": 256, "use_sandwich_norm": True, "use_attention_gate": True,
    },
    "llama": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 2048,
    },
    "llama4_text": {
        "vocab_size": 202048, "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": 131072, "num_experts_per_tok": 1, "num_local_experts": 16,
        "interleave_moe_layer_step": 1, "attention_chunk_size": 8192,
    },
    "longcat_flash": {
        "vocab_size": 131072, "hidden_size": 6144, "num_layers": 28, "num_attention_heads": 64,
        "max_position_embeddings": 131072, "ffn_hidden_size": 12288, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "moe_topk": 12, "n_routed_experts": 512,
        "zero_expert_num": 256, "expert_ffn_hidden_size": 2048,
    },
    "mamba": {"vocab_size": 50280, "hidden_size": 768, "state_size": 16, "num_hidden_layers": 32, "conv_kernel": 4},
    "mamba2": {
        "num_heads": 128, "head_dim": 64, "vocab_size": 32768, "hidden_size": 4096, "state_size": 128,
        "num_hidden_layers": 64, "expand": 2, "conv_kernel": 4, "n_groups": 8,
    },
    "mimo_v2_flash": {
        "vocab_size": 152576, "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 48,
        "num_attention_heads": 64, "num_key_value_heads": 4, "max_position_embeddings": 131072,
        "moe_intermediate_size": 2048, "num_experts_per_tok": 8, "n_routed_experts": 256, "head_dim": 192,
        "v_head_dim": 128, "sliding_window": 129,
    },
    "minicpm3": {
        "vocab_size": 73448, "hidden_size": 2560, "intermediate_size": 6400, "num_hidden_layers": 62,
        "num_attention_heads": 40, "max_position_embeddings": 32768, "kv_lora_rank": 256, "q_lora_rank": 768,
        "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
    },
    "minimax": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "num_experts_per_tok": 2, "num_local_experts": 8,
    },
    "minimax_m2": {
        "vocab_size": 200064, "hidden_size": 3072, "intermediate_size": 1536, "num_hidden_layers": 62,
        "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 196608,
        "num_experts_per_tok": 8, "num_local_experts": 256,
    },
    "minimax_m3_vl_text": {
        "vocab_size": 200064, "hidden_size": 6144, "intermediate_size": 3072, "num_hidden_layers": 60,
        "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 524288,
        "num_experts_per_tok": 4, "num_local_experts": 128, "dense_intermediate_size": 12288,
        "shared_intermediate_size": 3072,
    },
    "ministral": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096,
    },
    "ministral3": {
        "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 34,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    },
    "mistral": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096,
    },
    "mistral4": {
        "vocab_size": 131072, "hidden_size": 4096, "moe_intermediate_size": 2048, "num_hidden_layers": 36,
        "num_attention_heads": 32, "n_shared_experts": 1, "n_routed_experts": 128, "kv_lora_rank": 256,
        "q_lora_rank": 1024, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 64,
        "num_experts_per_tok": 4, "first_k_dense_replace": 0,
    },
    "mixtral": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "num_experts_per_tok": 2, "num_local_experts": 8,
    },
    "mllama_text_model": {
        "vocab_size": 128256, "hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "max_position_embeddings": 131072,
    },
    "modernbert": {
        "vocab_size": 50368, "hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22,
        "num_attention_heads": 12, "max_position_embeddings": 8192, "local_attention": 128,
    },
    "mpt": {"d_model": 2048, "n_heads": 16, "n_layers": 24, "max_seq_len": 2048, "vocab_size": 50368},
    "nemotron": {
        "vocab_size": 256000, "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 32,
        "num_attention_heads": 48, "max_position_embeddings": 4096,
    },
    "nemotron_h": {
        "vocab_size": 131072, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": 4096, "intermediate_size": 21504, "ssm_state_size": 128, "mamba_num_heads": 128,
        "mamba_head_dim": 64, "n_groups": 8, "conv_kernel": 4, "n_routed_experts": 8, "n_shared_experts": 1,
        "moe_intermediate_size": 7688, "moe_shared_expert_intermediate_size": 7688, "num_experts_per_tok": 2,
    },
    "olmo": {
        "vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 2048,
    },
    "olmo2": {
        "vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 2048,
    },
    "olmo3": {
        "vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 2048, "sliding_window": 4096,
    },
    "olmo_hybrid": {
        "vocab_size": 100352, "hidden_size": 3840, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 30, "max_position_embeddings": 65536, "linear_conv_kernel_dim": 4,
    },
    "olmoe": {
        "vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 16,
        "num_attention_heads": 16, "max_position_embeddings": 4096, "num_experts_per_tok": 8, "num_experts": 64,
    },
    "opt": {
        "vocab_size": 50272, "hidden_size": 768, "num_hidden_layers": 12, "ffn_dim": 3072,
        "max_position_embeddings": 2048, "num_attention_heads": 12,
    },
    "paddleocr_vl_text": {
        "vocab_size": 103424, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 18,
        "num_attention_heads": 16, "num_key_value_heads": 2, "max_position_embeddings": 131072, "head_dim": 128,
    },
    "persimmon": {
        "vocab_size": 262144, "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 36,
        "num_attention_heads": 64, "max_position_embeddings": 16384,
    },
    "phi": {
        "vocab_size": 51200, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24,
        "num_attention_heads": 32, "max_position_embeddings": 2048,
    },
    "phi3": {
        "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 4096,
    },
    "phi4_multimodal": {
        "vocab_size": 200064, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
    },
    "phimoe": {
        "vocab_size": 32064, "hidden_size": 4096, "intermediate_size": 6400, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "num_experts_per_tok": 2, "num_local_experts": 16,
    },
    "qwen2": {
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 32768, "max_window_layers": 28,
        "sliding_window": 4096,
    },
    "qwen2_5_vl_text": {
        "vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 32768,
    },
    "qwen2_moe": {
        "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16,
        "num_key_value_heads": 16, "max_position_embeddings": 32768, "max_window_layers": 28,
        "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4,
        "num_experts": 60,
    },
    "qwen2_vl_text": {
        "vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 32768,
    },
    "qwen3": {
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 32768,
        "max_window_layers": 28, "sliding_window": 4096,
    },
    "qwen3_5_moe_text": {
        "vocab_size": 248320, "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16,
        "num_key_value_heads": 2, "max_position_embeddings": 32768, "head_dim": 256, "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
        "linear_num_value_heads": 32, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
        "num_experts_per_tok": 8, "num_experts": 256,
    },
    "qwen3_5_text": {
        "vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32,
        "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 32768, "head_dim": 256,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    },
    "qwen3_moe": {
        "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32,
        "num_key_value_heads": 4, "max_position_embeddings": 32768, "moe_intermediate_size": 768,
        "num_experts_per_tok": 8, "num_local_experts": 128,
    },
    "qwen3_next": {
        "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 16,
        "num_key_value_heads": 2, "max_position_embeddings": 32768, "head_dim": 256, "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
        "linear_num_value_heads": 32, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
        "num_experts_per_tok": 10, "num_experts": 512,
    },
    "qwen3_omni_moe_text": {
        "vocab_size": 3584, "hidden_size": 2048, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "max_position_embeddings": 32768, "moe_intermediate_size": 768,
        "num_experts_per_tok": 8, "num_experts": 128,
    },
    "qwen3_vl_moe_text": {
        "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16,
        "num_key_value_heads": 16, "max_position_embeddings": 128000, "moe_intermediate_size": 1408,
        "num_experts_per_tok": 4, "num_local_experts": 60,
    },
    "qwen3_vl_text": {
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 128000,
    },
    "recurrent_gemma": {
        "num_hidden_layers": 26, "vocab_size": 256000, "hidden_size": 2560, "intermediate_size": 7680,
        "num_attention_heads": 10, "attention_window_size": 2048, "conv1d_width": 4,
    },
    "roberta": {
        "vocab_size": 50265, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "max_position_embeddings": 512, "type_vocab_size": 2,
    },
    "rwkv": {"vocab_size": 50277, "context_length": 1024, "hidden_size": 4096, "num_hidden_layers": 32},
    "seed_oss": {
        "vocab_size": 155136, "hidden_size": 4096, "intermediate_size": 27648, "num_hidden_layers": 64,
        "num_attention_heads": 80, "num_key_value_heads": 8, "max_position_embeddings": 524288, "attention_bias": True,
        "head_dim": 128,
    },
    "smollm3": {
        "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
        "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 32768,
    },
    "solar_open": {
        "vocab_size": 196608, "hidden_size": 4096, "num_hidden_layers": 48, "num_attention_heads": 64,
        "num_key_value_heads": 8, "max_position_embeddings": 131072, "moe_intermediate_size": 1280,
        "num_experts_per_tok": 8, "n_shared_experts": 1, "n_routed_experts": 128, "head_dim": 128,
    },
    "stablelm": {
        "vocab_size": 50304, "intermediate_size": 6912, "hidden_size": 2560, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096,
    },
    "starcoder2": {
        "vocab_size": 49152, "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers": 30,
        "num_attention_heads": 24, "num_key_value_heads": 2, "max_position_embeddings": 4096,
    },
    "step3p5": {
        "vocab_size": 128815, "hidden_size": 4096, "intermediate_size": 11264, "num_hidden_layers": 45,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 128000,
        "num_experts_per_tok": 8, "n_routed_experts": 288, "moe_intermediate_size": 1280, "share_expert_dim": 1280,
    },
    "vaultgemma": {
        "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192,
        "sliding_window": 4096,
    },
    "xlm-roberta": {
        "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "max_position_embeddings": 512, "type_vocab_size": 2,
    },
    "youtu": {
        "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 32,
        "num_attention_heads": 16, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "qk_nope_head_dim": 128, "max_position_embeddings": 131072,
    },
    "zamba2": {
        "vocab_size": 32000, "max_position_embeddings": 4096, "hidden_size": 2560, "mamba_d_state": 64,
        "mamba_d_conv": 4, "mamba_expand": 2, "mamba_ngroups": 1, "n_mamba_heads": 8, "num_attention_heads": 32,
        "num_mem_blocks": 1, "adapter_rank": 128,
    },
}
# fmt: on
"""The fields of each ``model_type``."""
