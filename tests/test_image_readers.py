"""Encoder-decoders whose encoder reads an image, against transformers on meta and by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    CONFIG_MAPPING,
    BlipForConditionalGeneration,
    Pix2StructForConditionalGeneration,
    VisionEncoderDecoderModel,
)

from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import MissingFactError, SpecError, UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.graph import build
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import estimate
from inferplan.estimate.towers import media_of_requests
from inferplan.models.huggingface import import_config
from inferplan.models.media import MediaAsked
from inferplan.models.spec import ModelSpec
from inferplan.work.ops import Attention, Matmul
from inferplan.work.step import decode, prefill
from tests.cases import for_each

BLIP = {
    "text_config": {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96},
    "vision_config": {"num_hidden_layers": 3, "hidden_size": 48, "num_attention_heads": 3, "image_size": 64},
}
PIX2STRUCT = {
    "text_config": {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "d_kv": 16, "d_ff": 96},
    "vision_config": {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 2, "d_kv": 24, "d_ff": 80},
}


def config(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(json.dumps(CONFIG_MAPPING[kind](**fields).to_dict(), default=str))
    return said


def imported(kind: str, fields: dict[str, Any]) -> ModelSpec:
    return import_config(config(kind, fields), kind, "test").model


def deployment(model: ModelSpec) -> Deployment:
    return assemble(Request(model="x", gpu="h100-sxm", ideal=True), model_loader=lambda _: model)


def multiplied(model: ModelSpec, positions: int) -> float:
    """FLOP of matrices and attention of a request's first step."""
    ops = [op for stage in build(deployment(model), prefill(1.0, float(positions))) for op in stage.ops]
    return sum(float(op.work().flop * op.count) for op in ops if isinstance(op, Attention | Matmul))


def test_flop_of_a_caption_are_those_of_the_class() -> None:
    """16 patches and a class token: the matrix of patches is priced for the class token too."""
    said = CONFIG_MAPPING["blip"](**BLIP)
    said._attn_implementation = "eager"
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        built = BlipForConditionalGeneration(said).eval()
        built(pixel_values=torch.ones(1, 3, 64, 64), input_ids=torch.ones(1, 1, dtype=torch.long))
    model, spare = imported("blip", BLIP), 2 * 3 * 16 * 16 * 48
    assert model.parameters["total"] == sum(one.numel() for one in built.parameters())
    assert multiplied(model, 17) - spare == counter.get_total_flops()


def test_flop_of_pix2struct_are_those_of_the_class() -> None:
    """50 patches of 768 values, with a row and a column each; the first word about them."""
    said = CONFIG_MAPPING["pix2struct"](**PIX2STRUCT)
    said._attn_implementation = "eager"
    with torch.no_grad(), FlopCounterMode(display=False) as counter:  # its class reads the patches' rows
        built = Pix2StructForConditionalGeneration(said).eval()
        patches = torch.ones(1, 50, 2 + 768)
        built(flattened_patches=patches, decoder_input_ids=torch.ones(1, 1, dtype=torch.long))
    model = imported("pix2struct", PIX2STRUCT)
    assert model.parameters["total"] == sum(one.numel() for one in built.parameters())
    assert multiplied(model, 50) == counter.get_total_flops()


def test_blip_by_hand() -> None:
    """24 x 24 patches of 16 pixels and a class token: 577 positions, and 20 tokens written, in 12 layers 768 wide."""
    model, d = imported("blip", {}), 768
    vision = 3 * 16**2 * d + d + 577 * d + d + 12 * (4 * d * d + 4 * d + 8 * d * d + 5 * d + 4 * d) + 2 * d
    layer = 8 * d * d + 8 * d + 8 * d * d + 5 * d + 6 * d
    text = 30524 * d + 512 * d + 2 * d + 12 * layer + d * d + 3 * d + 30524
    assert model.parameters["total"] == vision + text
    asked = StaticLoad(batch=3.0, prompt=577.0, output=20.0)
    assert estimate(deployment(model), asked).footprint.state == 3 * (577 + 20) * 12 * 2 * d * 2


def test_an_image_is_the_whole_prompt() -> None:
    one = deployment(imported("blip", {}))
    with pytest.raises(UsageError, match="reads 577 positions: an image of one size"):
        estimate(one, StaticLoad(batch=1.0, prompt=100.0, output=20.0))
    with pytest.raises(UsageError, match="its encoder reads positions"):
        media_of_requests(imported("blip", {}), MediaAsked(images=1))


def test_a_new_field_of_a_half_is_refused_by_name() -> None:
    for kind, half in (("blip", "vision_config"), ("pix2struct", "text_config")):
        said = config(kind, {})
        said[half]["register_tokens"] = 4
        with pytest.raises(SpecError, match=rf"{half}\.register_tokens"):
            import_config(said, kind, "test")


def test_davit_by_hand() -> None:
    """Florence-2's tower at one resolution of 8 channels: a block attends in windows and one between channels."""
    one = {"embed_dim": [8], "depths": [1], "num_heads": [2], "num_groups": [2], "patch_prenorm": [False]}
    one |= {"patch_size": [7], "patch_stride": [4], "patch_padding": [3], "projection_dim": 16}
    text = {"model_type": "bart", "d_model": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    model = imported("florence2", {"vision_config": one, "text_config": text})
    block = 2 * (9 * 8 + 8) + 4 * 8 + (8 * 24 + 24) + (8 * 8 + 8) + (8 * 32 + 32) + (32 * 8 + 8)
    assert model.tower_parameters == (3 * 49 * 8 + 8) + 2 * 8 + 2 * block + 50 * 8 + 8 * 16 + 2 * 16
    with pytest.raises(UsageError, match="its encoder reads tokens"):
        media_of_requests(model, MediaAsked(images=1))


VIT = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "image_size": 64}
READS = {"is_decoder": True, "add_cross_attention": True}
MBART = {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "encoder_attention_heads": 4}
PAIRS: dict[str, dict[str, Any]] = {
    "vit-gpt2": {
        "encoder": {"model_type": "vit", **VIT},
        "decoder": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100, **READS},
    },
    "vit-roberta": {
        "encoder": {"model_type": "vit", **VIT, "qkv_bias": False, "pooler_output_size": 12},
        "decoder": {"model_type": "roberta", "hidden_size": 48, "num_attention_heads": 4, "vocab_size": 100, **READS},
    },
    "deit-trocr": {
        "encoder": {"model_type": "deit", **VIT},
        "decoder": {"model_type": "trocr", "d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4}
        | {"decoder_ffn_dim": 40, "cross_attention_hidden_size": 48, "vocab_size": 100},
    },
    "donut": {
        "encoder": {"model_type": "donut-swin", "embed_dim": 12, "depths": [1, 2], "num_heads": [2, 4]}
        | {"image_size": [64, 48], "window_size": 5},
        "decoder": {"model_type": "mbart", **MBART, "decoder_ffn_dim": 40, "vocab_size": 100},
    },
    "donut-swin of another kind": {
        "encoder": {"model_type": "donut-swin", "use_absolute_embeddings": True, "qkv_bias": False},
        "decoder": {"model_type": "bert", **READS, "tie_word_embeddings": False},
    },
}


@for_each("name", PAIRS)
def test_a_pair_is_that_of_the_class(name: str) -> None:
    """Parameters; and of a ViT with another decoder the FLOP of its first step, but for the learned words' patches."""
    said = CONFIG_MAPPING["vision-encoder-decoder"](**PAIRS[name])
    said._attn_implementation = "eager"
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        built = VisionEncoderDecoderModel(said).eval()
        if "donut" not in name:
            ids = torch.ones(1, 1, dtype=torch.long)
            built(pixel_values=torch.ones(1, 3, 64, 64), decoder_input_ids=ids)
    model = imported("vision-encoder-decoder", PAIRS[name])
    assert model.parameters["total"] == sum(one.numel() for one in built.parameters())
    assert model.encoder is not None and model.encoder.frames is not None
    if "donut" in name:
        with pytest.raises(MissingFactError, match="time of this model"):
            multiplied(model, model.encoder.frames)
        return
    words = model.encoder.frames - 16
    pooler = 2 * 48 * model.encoder.tensors["pooler"][0]
    spare = words * 2 * 3 * 16 * 16 * 48 - pooler
    assert multiplied(model, model.encoder.frames) - spare == counter.get_total_flops()


def test_donut_reads_the_positions_of_its_last_stage() -> None:
    """2560 x 1920 pixels, patches of 4: 640 x 480, halved three times."""
    encoder = {"model_type": "donut-swin", "image_size": [2560, 1920], "depths": [2, 2, 14, 2], "window_size": 10}
    model = imported("vision-encoder-decoder", {"encoder": encoder, "decoder": {"model_type": "mbart"}})
    assert model.encoder is not None and model.encoder.frames == 80 * 60
    own = model.max_context
    assert own is not None and own - 80 * 60 == 1024


@for_each(
    ("half", "fields"),
    [("encoder", {"model_type": "beit"}), ("decoder", {"model_type": "llama"}), ("decoder", {"model_type": "bert"})],
)
def test_a_half_that_is_not_known_is_refused_by_name(half: str, fields: dict[str, Any]) -> None:
    said = config("vision-encoder-decoder", PAIRS["vit-gpt2"])
    with pytest.raises(SpecError, match=rf"{half}\.(model_type|is_decoder)"):
        import_config(said | {half: config(fields["model_type"], {})}, "pair", "test")


def test_udop_by_hand() -> None:
    """T5-large with rows of its own, two matrices of patches, two tables of places, biases of places in both halves."""
    d, heads, inner = 1024, 16, 4096
    encoder = 24 * (4 * d * d + 2 * d * inner + 2 * d) + d + 32 * heads
    decoder = 24 * (8 * d * d + 2 * d * inner + 3 * d) + d + 32 * heads
    patches, places = 3 * 16 * 16 * d + d, 2 * 1024 * d
    model = imported("udop", {})
    assert model.parameters["total"] == 33201 * d + encoder + decoder + 2 * patches + places + 2 * 2 * 32 * heads
    with pytest.raises(SpecError, match="relative_bias_args"):
        imported("udop", {"relative_bias_args": [{"type": "1d", "prefix_bucket": True}]})


def test_formulas_by_hand() -> None:
    """PP-FormulaNet's SAM of 12 layers 768 wide, four of which see all of 32 x 32 patches; 8 x 8 positions are left."""
    d, wide = 512, 768
    layer = 4 * wide * wide + 4 * wide + 2 * wide * 3072 + 3072 + wide + 4 * wide
    sam = 12 * layer + 3 * 256 * wide + wide + 32 * 32 * wide + 64 * 2 * (4 * (2 * 32 - 1) + 8 * (2 * 14 - 1))
    neck = wide * 256 + 9 * 256 * 256 + 4 * 256
    behind = 9 * 256 * 512 + 9 * 512 * 1024 + 1024 * 1024 + 1024 + 1024 * d + d
    own = 8 * (8 * d * d + 8 * d + 2 * d * 2048 + 2048 + d + 6 * d) + 2 * 50000 * d + 2562 * d + 4 * d
    model = imported("pp_formulanet", {})
    assert model.parameters["total"] == sam + neck + behind + own
    assert model.encoder is not None and model.encoder.frames == 64
    with pytest.raises(MissingFactError, match="time of this model"):
        multiplied(model, 64)
    assert multiplied_decode(model) == 2 * (8 * (6 * d * d + 2 * d * 2048) + 50000 * d) + 8 * 4 * d * (64 + 2)


def multiplied_decode(model: ModelSpec) -> float:
    """FLOP of the second token."""
    ops = [op for stage in build(deployment(model), decode(1.0, 64.0, 64.0)) for op in stage.ops]
    return sum(float(op.work().flop * op.count) for op in ops if isinstance(op, Attention | Matmul))


def test_idefics_9b_by_hand() -> None:
    """Llama 7B with a gated layer before every fourth: a feed-forward of the decoder, and attention beside it."""
    perceiver = {"use_resampler": True, "qk_layer_norms_perceiver": True}
    fields = {"alpha_type": "vector", "cross_layer_interval": 4, "qk_layer_norms": True, "use_resampler": True}
    fields |= {"additional_vocab_size": 2, "vision_config": {"embed_dim": 1280}, "perceiver_config": perceiver}
    model, d, wide = imported("idefics", fields), 4096, 1280
    assert model.parameters["total"] == 6_738_415_616 + 2 * 2 * d + 8 * (
        3 * d * 11008 + d
    )  # Llama 2 7B, two words more
    assert model.kv_elements_per_token == 32 * 2 * d
    vision = 32 * (4 * wide * wide + 4 * wide + 2 * wide * 5120 + 5120 + wide + 4 * wide)
    vision += 588 * wide + wide + 257 * wide + 4 * wide
    latents = 64 * wide + 2 * wide + 6 * (4 * wide * 16 * 96 + 8 * wide * wide + 6 * wide + 4 * 96)
    cross = 8 * (2 * d * d + 2 * wide * d + d + 2 * 128 + 2 * d)
    assert model.tower_parameters == vision + latents + cross
    rows = 32 * (4 * d * d + 3 * d * 11008) + 8 * 3 * d * 11008 + 32002 * d
    assert multiplied(model, 1) == 2 * rows + 32 * 4 * d
    with pytest.raises(SpecError, match="cross_layer_interval"):
        imported("idefics", {"cross_layer_interval": 5})


TIMM = {"model_type": "timm_wrapper", "architecture": "fastvit_mci3", "hidden_size": 3072, "num_features": 3072}


def test_a_tower_of_timm_is_said_not_to_be_counted() -> None:
    """FastVLM: its language model and two matrices are; no field of its config is a shape of its tower."""
    said = config("llava", {"text_config": {"model_type": "qwen2"}}) | {"model_type": "fast_vlm"}
    for name in ("image_seq_length", "vision_feature_layer"):
        said.pop(name, None)
    found = import_config(said | {"vision_config": TIMM}, "fast_vlm", "test").model
    width = found.d_model
    assert found.tower_parameters == 3072 * width + width + width * width + width
    assert any("fastvit_mci3, of timm) is not counted" in note for note in found.notes)
    with pytest.raises(MissingFactError, match="what its tower"):
        media_of_requests(found.model_copy(update={"towers": []}), MediaAsked(images=1))
    with pytest.raises(MissingFactError, match="'vision'"):
        media_of_requests(found, MediaAsked(images=1))


def test_a_projector_without_the_width_of_its_tower_is_refused() -> None:
    said = config("llava", {}) | {"model_type": "perception_lm", "vision_config": TIMM}
    said.pop("image_seq_length", None)
    with pytest.raises(SpecError, match=r"vision_config\.model_args"):
        import_config(said, "perception_lm", "test")


def test_evolla_by_hand() -> None:
    """Llama 3 8B; SaProt-650M, six layers of 64 latents, and an adapter behind every fourth of 32 layers."""
    model, d, wide = imported("evolla", {}), 4096, 1280
    assert model.parameters["total"] == 8_030_261_248  # Llama 3 8B
    assert model.kv_elements_per_token == 32 * 2 * 8 * 128
    protein = 446 * wide + 33 * (4 * wide * wide + 4 * wide + 2 * wide * 5120 + 5120 + wide + 4 * wide) + 2 * wide
    latents = 64 * wide + 6 * (4 * wide * 512 + 8 * wide * wide + 6 * wide) + 2 * d + wide * d + d
    adapters = 8 * (4 * d * d + 4 * d + 8 * d * d + 3 * d + 2)
    assert model.tower_parameters == protein + latents + adapters
    with pytest.raises(SpecError, match="position_embedding_type"):
        imported("evolla", {"protein_encoder_config": {"position_embedding_type": "relative_key"}})


def test_pi0_by_hand() -> None:
    """PaliGemma 3B without a head, Gemma's layers 1024 wide with an embedding of their own, five matrices."""
    model, d, narrow, rows = imported("pi0", {}), 2048, 1024, 257152
    text = rows * d + 18 * (2 * d * 2048 + 2 * d * 256 + 3 * d * 16384 + 2 * d) + d
    expert = rows * narrow + 18 * (2 * narrow * 2048 + 2 * narrow * 256 + 3 * narrow * 4096 + 2 * narrow) + narrow
    moves = 2 * (32 * narrow + narrow) + 2 * narrow * narrow + narrow + narrow * narrow + narrow + narrow * 32 + 32
    assert model.parameters["total"] == text + expert + moves
    vision = (
        27 * (4 * 1152**2 + 2 * 1152 * 4304 + 4304 + 5 * 1152 + 4 * 1152) + 588 * 1152 + 1152 + 256 * 1152 + 2 * 1152
    )
    assert model.tower_parameters == vision + 1152 * d + d
    with pytest.raises(MissingFactError, match="time of this model"):
        multiplied(model, 300)
    with pytest.raises(SpecError, match=r"dit_config\.model_type"):
        imported("pi0", {"dit_config": {"model_type": "llama"}})


def test_unlimited_ocr_by_hand() -> None:
    """DeepSeek's experts in 11 of 12 layers, CLIP-L behind SAM; the window of what is written has no time here."""
    model, d = imported("unlimited_ocr", {}), 1280
    expert = 3 * d * 896
    sparse = 11 * (64 * expert + 2 * expert + 64 * d)
    text = 2 * 129280 * d + 12 * (4 * d * d + 2 * d) + sparse + 3 * d * 6848 + d
    assert model.parameters["total"] == text
    assert model.kv_elements_per_token == 12 * 2 * d
    clip = 24 * (12 * 1024**2 + 4096 + 9 * 1024) + 1024 + 257 * 1024 + 2 * 1024
    behind = next(tower for tower in model.towers if tower.name == "encoder")
    assert behind.parameters == clip + 2048 * d + d + 2 * d
    assert any("the last 128 are kept" in note for note in model.notes)
    with pytest.raises(MissingFactError, match="time of this model"):
        multiplied(model, 100)
