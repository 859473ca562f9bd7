"""FLOP of a pass of a tower against torch's own count over the class that transformers builds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.estimate.graph import media_ops
from inferplan.models.huggingface import model_from_config
from inferplan.models.media import MediaAsked
from inferplan.work.ops import Attention, Matmul
from tests.cases import for_each

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from transformers import AutoConfig, AutoModel  # noqa: E402

TEXT = {
    "hidden_size": 96,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 256,
}


def built(config: dict[str, Any]) -> Any:
    """The whole model on meta-sized tensors of the CPU: a few thousand parameters."""
    made = AutoConfig.for_model(**config)
    model = AutoModel.from_config(made, attn_implementation="eager")
    return model.eval()


def flop_of(config: dict[str, Any], asked: MediaAsked) -> float:
    model = model_from_config(config, "small", "test")
    request = Request(model="small", gpu="h100-sxm", media=asked, ideal=True)
    ops = media_ops(assemble(request, model_loader=lambda _: model), 1.0)
    return float(sum(op.work().flop * op.count for op in ops if isinstance(op, (Matmul, Attention))))


def grid(model: Any, patches: tuple[int, int], width: int) -> None:
    down, across = patches
    model.get_image_features(torch.zeros(down * across, width), torch.tensor([[1, down, across]]))


QWEN25 = {
    "model_type": "qwen2_5_vl",
    "text_config": TEXT
    | {
        "model_type": "qwen2_5_vl_text",
        "rope_parameters": {"rope_type": "default", "mrope_section": [4, 4, 4], "rope_theta": 1e6},
    },
    "vision_config": {
        "model_type": "qwen2_5_vl",
        "depth": 4,
        "hidden_size": 64,
        "intermediate_size": 80,
        "num_heads": 4,
        "in_channels": 3,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [1, 3],
        "out_hidden_size": 96,
        "tokens_per_second": 4,
    },
}
QWEN2 = {
    "model_type": "qwen2_vl",
    "text_config": QWEN25["text_config"] | {"model_type": "qwen2_vl_text"},
    "vision_config": {
        "model_type": "qwen2_vl",
        "depth": 3,
        "embed_dim": 64,
        "hidden_size": 96,
        "mlp_ratio": 4,
        "num_heads": 4,
        "in_channels": 3,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
}
GLM = {
    "model_type": "glm4v",
    "text_config": TEXT
    | {
        "model_type": "glm4v_text",
        "rope_parameters": {
            "rope_type": "default",
            "mrope_section": [4, 4, 4],
            "rope_theta": 1e6,
            "partial_rotary_factor": 0.5,
        },
    },
    "vision_config": {
        "model_type": "glm4v_vision",
        "depth": 3,
        "hidden_size": 64,
        "intermediate_size": 120,
        "num_heads": 4,
        "in_channels": 3,
        "image_size": 112,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 96,
    },
}
MISTRAL3 = {
    "model_type": "mistral3",
    "spatial_merge_size": 2,
    "text_config": TEXT | {"model_type": "mistral", "head_dim": 24},
    "vision_config": {
        "model_type": "pixtral",
        "hidden_size": 64,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "head_dim": 16,
        "num_channels": 3,
        "image_size": 224,
        "patch_size": 14,
    },
}
AUDIO = {
    "d_model": 64,
    "encoder_layers": 3,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "num_mel_bins": 16,
    "max_source_positions": 1500,
}
QWEN2_AUDIO = {
    "model_type": "qwen2_audio",
    "text_config": TEXT | {"model_type": "qwen2"},
    "audio_config": AUDIO | {"model_type": "qwen2_audio_encoder"},
}
VOXTRAL = {
    "model_type": "voxtral",
    "text_config": TEXT | {"model_type": "llama"},
    "audio_config": {
        "model_type": "voxtral_encoder",
        "hidden_size": 64,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_mel_bins": 16,
        "max_source_positions": 1500,
    },
}
INTERNVL = {
    "model_type": "internvl",
    "downsample_ratio": 0.5,
    "text_config": TEXT | {"model_type": "qwen2"},
    "vision_config": {
        "model_type": "internvl_vision",
        "hidden_size": 64,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "image_size": [112, 112],
        "patch_size": [14, 14],
    },
}
IMAGE = MediaAsked(images=1, image_size=(224, 112))
LLAVA = {
    "model_type": "llava",
    "text_config": TEXT | {"model_type": "llama"},
    "vision_config": {
        "model_type": "clip_vision_model",
        "hidden_size": 64,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "image_size": 112,
        "patch_size": 14,
    },
}
SIGLIP = LLAVA["vision_config"] | {"model_type": "siglip_vision_model", "vision_use_head": False}  # type: ignore[operator]
DEEPSEEK = {"model_type": "deepseek_vl", "text_config": LLAVA["text_config"], "vision_config": SIGLIP}
JANUS = {
    "model_type": "janus",
    "text_config": LLAVA["text_config"],
    "vision_config": {
        "model_type": "janus_vision_model",
        "hidden_size": 64,
        "mlp_ratio": 2.0,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "image_size": 112,
        "patch_size": 14,
        "projection_dim": 96,
    },
    "vq_config": {"base_channels": 32, "channel_multiplier": [1, 2], "num_embeddings": 16, "latent_channels": 32},
}
COSMOS = {
    "model_type": "cosmos3_omni",
    "text_config": TEXT | {"model_type": "qwen3_vl_text", "head_dim": 24},
    "vision_config": {
        "model_type": "qwen3_vl_vision",
        "depth": 3,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_heads": 4,
        "out_hidden_size": 96,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1],
    },
}
AYA = {"model_type": "aya_vision", "text_config": TEXT | {"model_type": "cohere2"}, "vision_config": SIGLIP}
QIANFAN = {"model_type": "qianfan_ocr_vision"}
SEEN = MediaAsked(images=1)
CASES: dict[str, tuple[dict[str, Any], MediaAsked, Callable[[Any], Any]]] = {
    "qwen2_vl": (QWEN2, IMAGE, lambda m: grid(m, (8, 16), 3 * 2 * 14 * 14)),
    "qwen2_5_vl": (QWEN25, IMAGE, lambda m: grid(m, (8, 16), 3 * 2 * 14 * 14)),
    "glm4v": (GLM, IMAGE, lambda m: grid(m, (8, 16), 3 * 2 * 14 * 14)),
    "mistral3": (
        MISTRAL3,
        IMAGE,
        lambda m: m.get_image_features(torch.zeros(1, 3, 112, 224), image_sizes=torch.tensor([[112, 224]])),
    ),
    "internvl": (
        INTERNVL,
        MediaAsked(images=1, image_size=(112, 224)),
        lambda m: m.get_image_features(torch.zeros(3, 3, 112, 112)),
    ),
    "llava": (LLAVA, SEEN, lambda m: m.get_image_features(torch.zeros(1, 3, 112, 112))),
    "deepseek_vl": (DEEPSEEK, SEEN, lambda m: m.get_image_features(torch.zeros(1, 3, 112, 112))),
    "janus": (JANUS, SEEN, lambda m: m.get_image_features(torch.zeros(1, 3, 112, 112))),
    "cosmos3_omni": (
        COSMOS,
        MediaAsked(images=1, image_size=(128, 96)),
        lambda m: grid(m, (6, 8), 3 * 2 * 16 * 16),
    ),
    "aya_vision": (
        AYA,
        MediaAsked(images=1, image_size=(112, 224)),
        lambda m: m.get_image_features(torch.zeros(3, 3, 112, 112)),
    ),
    "qianfan_ocr": (
        INTERNVL | {"model_type": "qianfan_ocr", "vision_config": INTERNVL["vision_config"] | QIANFAN},  # type: ignore[operator]
        MediaAsked(images=1, image_size=(112, 224)),
        lambda m: m.get_image_features(torch.zeros(3, 3, 112, 112)),
    ),
    "qwen2_audio": (
        QWEN2_AUDIO,
        MediaAsked(audio_seconds=30),
        lambda m: m.multi_modal_projector(m.audio_tower(torch.zeros(1, 16, 3000)).last_hidden_state),
    ),
    "voxtral": (VOXTRAL, MediaAsked(audio_seconds=30), lambda m: m.get_audio_features(torch.zeros(1, 16, 3000))),
}


@for_each("kind", CASES)
def test_flop_of_a_pass(kind: str):
    config, asked, run = CASES[kind]
    model = built(config)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run(model)
    assert flop_of(config, asked) == counter.get_total_flops()


GEMMA4 = {
    "model_type": "gemma4",
    "text_config": TEXT
    | {
        "model_type": "gemma4_text",
        "head_dim": 24,
        "global_head_dim": 24,
        "sliding_window": 32,
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
    },
    "vision_config": {
        "model_type": "gemma4_vision",
        "hidden_size": 64,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 16,
    },
}


def test_flop_of_a_pass_of_gemma_4():
    """960 x 672 pixels are all of the 2,520 patches; the class averages squares of nine by a product, left out here."""
    model = built(GEMMA4)
    places = torch.stack(torch.meshgrid(torch.arange(60), torch.arange(42), indexing="xy"), -1).reshape(1, -1, 2)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.get_image_features(torch.zeros(1, 2520, 3 * 16 * 16), places)
    averaged = 2 * 280 * 2520 * 64
    assert flop_of(GEMMA4, MediaAsked(images=1, image_size=(960, 672))) == counter.get_total_flops() - averaged
