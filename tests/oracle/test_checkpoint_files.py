"""Configs as checkpoints ship them: answered, and of the size that somebody else states.

``tests/fixtures/checkpoint_sizes.json`` holds a few with the fields that matter and a public size. The files themselves
are reference data beside the checkout; without it this runs on those few.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inferplan.catalog import files as catalog
from inferplan.errors import InferplanError, SpecError
from inferplan.models.huggingface import import_config
from inferplan.models.huggingface.inert import INERT
from inferplan.models.huggingface.quantisation import LAYOUTS, checkpoint_shapes
from inferplan.models.spec import ModelSpec
from tests.cases import for_each
from tests.oracle.test_model_oracle import rows

SIZES = {
    entry["name"]: entry
    for entry in json.loads(Path(__file__).parents[1].joinpath("fixtures/checkpoint_sizes.json").read_text())
}
NO_SIZE = {
    "THUDM/chatglm3-6b": "code of its checkpoint, 6B in its name",
    "THUDM/glm-4-9b": "code of its checkpoint, 9B in its name",
    "baichuan-inc/Baichuan2-7B-Chat": "code of its checkpoint, 7B in its name",
    "deepseek-ai/DeepSeek-V4-Flash-0731": "no class has its prediction modules",
    "deepseek-ai/Janus-1.3B": "its class counts it otherwise: test_janus_as_deepseek_stores_it",
    "internlm/internlm2-7b-reward": "internlm2-7b with one row in place of the head: test_a_reward_model",
    "liuhaotian/llava-v1.5-7b": "its tower is another checkpoint: test_llava_as_its_authors_store_it",
    "moonshotai/Kimi-K2.6": "the shape of Kimi-K2.5, which the table has",
    "stepfun-ai/Step-3.7-Flash": "no file of the checkpoint: test_a_step_without_tables",
}
"""Files of whose tensors nobody here states the sum, and what holds them instead."""


def size(model: ModelSpec, beside: dict[str, int] | None = None) -> int:
    """Elements of a model with its towers, and of what its checkpoint stores beside them."""
    return model.parameters["total"] + model.tower_parameters + sum((beside or {}).values())


def agrees(model: ModelSpec, entry: dict[str, Any]) -> bool:
    if "bytes" in entry:
        return model.checkpoint_bytes == entry["bytes"]
    return size(model, entry.get("beside")) == entry["parameters"]


@for_each("name", SIZES)
def test_a_config_has_the_size_that_is_stated(name: str) -> None:
    entry = SIZES[name]
    found = import_config(entry["config"], "model", "test").model
    assert agrees(found, entry), (size(found, entry.get("beside")), found.checkpoint_bytes)


def files(shared: Path) -> dict[str, tuple[dict[str, Any], dict[str, Any] | None]]:
    """Every config by the name of its checkpoint, with its separate quantisation table."""
    folder = shared / "model_configs"
    found = {}
    for path in sorted([*folder.glob("*.json"), *folder.glob("real/*.json")]):
        beside = folder / "quant" / f"{path.stem}_hf_quant_config.json"
        table = json.loads(beside.read_text()) if beside.is_file() else None
        config = json.loads(path.read_text())
        for one in (config, table):
            if one is not None:
                one.pop("_source", None)
        found[path.stem.replace("--", "/")] = (config, table)
    return found


def test_files_are_answered_with_the_size_that_is_stated(shared: Path) -> None:
    given, refused, wrong, unknown = files(shared), {}, {}, []
    tabled = {row["name"] for row in rows(shared)}
    for name, (config, table) in given.items():
        try:
            model = import_config(config, name.lower(), "test", table).model
        except SpecError as error:
            refused[name] = str(error)
            continue
        if name in SIZES:
            if not agrees(model, SIZES[name]):
                wrong[name] = size(model)
        elif name not in tabled:  # test_model_oracle.py has those
            found = printed(name, model)
            found = built(config, model) if found is None else found
            if found is None:
                unknown.append(name)
            elif found:
                wrong[name] = found
    assert len(given) > 170
    assert not refused
    assert not wrong
    assert set(unknown) <= set(NO_SIZE)


def printed(name: str, model: ModelSpec) -> str | None:
    """How a model differs from what its vendor prints (``published`` of the catalogue), ``None`` where nothing is."""
    try:
        own = catalog.load_model(name)
    except InferplanError:
        return None
    said = own.published
    if said is None or said.parameters is None:
        return None
    # test_model_catalogue.py holds the catalogue by it; some rows there have no tower, or no head (an embedder's).
    beside = {0, model.tower_parameters} | {-model.parameters["lm_head"]}
    same = size(own) - model.parameters["total"] in beside
    return "" if same else f"{size(model):,}, and {own.name} has {size(own):,}"


def built(config: dict[str, Any], model: ModelSpec) -> str | None:
    """How a model differs from what transformers builds of the same config on meta, ``None`` where it has no class."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    known = config.get("model_type") in transformers.CONFIG_MAPPING
    made = getattr(transformers, (config.get("architectures") or [""])[0], None)
    if not known or made is None:
        return None
    stated = {key: value for key, value in config.items() if key not in ("quantization_config", "auto_map")}
    with torch.device("meta"):
        built = made._from_config(
            transformers.CONFIG_MAPPING[config["model_type"]].from_dict(json.loads(json.dumps(stated))),
            dtype=torch.bfloat16,
        )
    elements = sum(parameter.numel() for parameter in built.parameters())
    return "" if elements == size(model) else f"{size(model):,}, and transformers {elements:,}"


LLAMA_7B = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_hidden_layers": 32}
LLAMA_7B |= {"num_key_value_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096}


def test_llava_as_its_authors_store_it() -> None:
    """Llama 2 of 7B (6,738,415,616), CLIP-L/14 at 336 with 577 places, two matrices from 1024 to 4096."""
    config = LLAMA_7B | {"model_type": "llava", "architectures": ["LlavaLlamaForCausalLM"], "use_mm_proj": True}
    config |= {"mm_hidden_size": 1024, "mm_projector_type": "mlp2x_gelu", "mm_vision_select_layer": -2}
    config |= {"mm_vision_tower": "openai/clip-vit-large-patch14-336", "mm_resampler_type": None}
    found = import_config(config, "llava", "test").model
    layer = 4 * (1024 * 1024 + 1024) + 2 * 1024 * 4096 + 4096 + 1024 + 4 * 1024
    clip = 24 * layer + 3 * 14 * 14 * 1024 + 578 * 1024 + 4 * 1024
    projector = 1024 * 4096 + 4096 + 4096 * 4096 + 4096
    assert found.parameters["total"] == 6_738_415_616
    assert found.tower_parameters == clip + projector
    said = "assumed: the sizes of its tower: those of openai/clip-vit-large-patch14-336"
    assert any(note.startswith(said) for note in found.notes)
    for changed in ({"mm_vision_tower": "openai/other"}, {"mm_projector_type": "linear"}, {"mm_new_thing": 2}):
        with pytest.raises(SpecError, match=next(iter(changed))):
            import_config(config | changed, "llava", "test")


JANUS = {
    "model_type": "multi_modality",
    "language_config": LLAMA_7B | {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632}
    | {"num_attention_heads": 16, "num_key_value_heads": 16, "num_hidden_layers": 24, "vocab_size": 102400},
    "vision_config": {
        "cls": "CLIPVisionTower",
        "params": {"image_size": 384, "model_name": "siglip_large_patch16_384", "select_layer": -1},
    },
    "aligner_config": {
        "cls": "MlpProjector",
        "params": {"depth": 2, "input_dim": 1024, "n_embed": 2048, "projector_type": "mlp_gelu"},
    },
    "gen_vision_config": {"cls": "VQ-16", "params": {"image_token_size": 16384, "n_embed": 8}},
    "gen_aligner_config": {
        "cls": "MlpProjector",
        "params": {"depth": 2, "input_dim": 8, "n_embed": 2048, "projector_type": "mlp_gelu"},
    },
    "gen_head_config": {
        "cls": "vision_head",
        "params": {"image_token_embed": 2048, "image_token_size": 16384, "n_embed": 2048},
    },
}  # fmt: skip


def test_janus_as_deepseek_stores_it() -> None:
    """What transformers builds, and the pooling head of SigLIP: a query, attention over the patches, a feed-forward."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    text = JANUS["language_config"]
    with torch.device("meta"):
        built = transformers.JanusForConditionalGeneration(
            transformers.JanusConfig(text_config=text, tie_word_embeddings=False)
        )
    pooling = 1024 + 4 * (1024 * 1024 + 1024) + 2 * 1024 + 2 * 1024 * 4096 + 4096 + 1024
    found = import_config(JANUS, "janus", "test").model
    assert size(found) == sum(parameter.numel() for parameter in built.parameters()) + pooling == 2_089_232_011
    other = JANUS | {"gen_vision_config": {"cls": "VQ-32", "params": {}}}
    with pytest.raises(SpecError, match=r"gen_vision_config\.cls"):
        import_config(other, "janus", "test")


def test_a_step_without_tables() -> None:
    """Step 3.7's fields outside a table: those that transformers reads in one, with its prediction modules named."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    kinds = ["full_attention", *["sliding_attention"] * 3] * 2
    stated = {"num_hidden_layers": 6, "vocab_size": 1000, "sliding_window": 512, "layer_types": kinds}
    stated |= {"num_nextn_predict_layers": 2, "moe_layers_enum": "2,3,4,5", "moe_num_experts": 16, "moe_top_k": 4}
    stated |= {"attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 96}}
    stated |= {"hidden_size": 512, "intermediate_size": 640, "moe_intermediate_size": 64, "share_expert_dim": 96}
    read = {"n_routed_experts": 16, "num_experts_per_tok": 4}
    config = transformers.Step3p7Config(text_config=json.loads(json.dumps(stated)) | read)
    with torch.device("meta"):
        built = transformers.Step3p7ForConditionalGeneration(config)
    elements = sum(one.numel() for part in (built.model.language_model, built.lm_head) for one in part.parameters())
    found = import_config({"model_type": "step3p7"} | stated, "step", "test").model
    assert found.parameters["total"] == elements
    assert [layer.mixer.heads for layer in found.sequence] == [64, 96, 96, 96, 64, 96]
    assert any("num_nextn_predict_layers = 2" in note for note in found.notes)
    alone = import_config({"model_type": "step3p5"} | config.text_config.to_dict(), "step", "test").model
    assert alone.parameters == found.parameters


def test_a_reward_model() -> None:
    """InternLM2 with one row of 4096 in place of the head (vLLM's models/internlm2.py, ``v_head``)."""
    config = LLAMA_7B | {"model_type": "internlm2", "bias": False}
    whole = import_config(config, "internlm2", "test").model
    reward = import_config(config | {"architectures": ["InternLM2ForRewardModel"]}, "internlm2", "test").model
    assert reward.parameters["total"] == whole.parameters["total"] - 32000 * 4096 + 4096
    assert reward.generation.kind == "encode"


def test_the_prediction_module_of_mimo() -> None:
    """vLLM's models/mimo_mtp.py: a layer of Qwen2, three norms, a matrix that joins two hidden states."""
    config = SIZES["XiaomiMiMo/MiMo-7B-Base"]["config"]
    layer = 4096 * 4096 + 4096 + 2 * (4096 * 1024 + 1024) + 4096 * 4096 + 3 * 4096 * 11008 + 2 * 4096
    assert import_config(config, "mimo", "test").model.mtp_parameters == layer + 2 * 4096 * 4096 + 3 * 4096


def test_the_context_is_the_smallest_that_the_config_states() -> None:
    """vLLM's ``_get_and_verify_max_len``; Qwen's code stretches positions beyond ``seq_length`` (its get_ntk_alpha)."""
    found = import_config(SIZES["Qwen/Qwen-7B"]["config"], "qwen", "test").model
    assert found.max_context == 8192
    assert any("seq_length = 8,192" in note for note in found.notes)


def test_a_pattern_of_letters_is_its_length() -> None:
    """``configuration_exaone4.py``: LLLG is 4."""
    config = LLAMA_7B | {"model_type": "exaone4", "sliding_window": 512}
    windows = [
        [
            layer.mixer.window
            for layer in import_config(config | {"sliding_window_pattern": said}, "x", "t").model.sequence
        ]
        for said in ("LLLG", 4)
    ]
    assert windows[0] == windows[1] == [512, 512, 512, None] * 8
    with pytest.raises(SpecError, match="sliding_window_pattern"):
        import_config(config | {"sliding_window_pattern": "LGLG"}, "x", "t")


def test_code_of_the_checkpoint_is_named() -> None:
    config = LLAMA_7B | {"model_type": "llama", "architectures": ["XForCausalLM"]}
    own = {"AutoConfig": "configuration_x.XConfig", "AutoModelForCausalLM": "modeling_x.XForCausalLM"}
    found = import_config(config | {"auto_map": own}, "x", "test").model
    assert any("auto_map: modeling_x.XForCausalLM), which was not read: counted as llama" in one for one in found.notes)
    assert not any("auto_map" in note for note in import_config(config, "x", "test").model.notes)


@for_each("kind", ["bart", "t5"])
def test_the_decoder_of_an_encoder_decoder_alone_is_refused(kind: str) -> None:
    """A decoder alone has fewer parameters than the encoder-decoder that its config describes."""
    transformers = pytest.importorskip("transformers")
    config = json.loads(json.dumps(transformers.CONFIG_MAPPING[kind]().to_dict(), default=str))
    assert import_config(config | {"architectures": None}, kind, "test")
    with pytest.raises(SpecError, match="architectures"):
        import_config(config | {"architectures": ["AnyForCausalLM"]}, kind, "test")


def test_an_inert_field_has_a_reason_and_a_new_one_is_refused() -> None:
    assert all(reason for fields in INERT.values() for reason in fields.values())
    config = LLAMA_7B | {"model_type": "llama", "internal_version": "7b-alpha"}
    assert import_config(config, "allam", "test").model.parameters["total"] == 6_738_415_616
    with pytest.raises(SpecError, match="mlp_intermediate_size"):  # inert for MiniMax-M2 alone
        import_config(config | {"mlp_intermediate_size": 8192}, "allam", "test")


def test_modules_have_the_names_of_the_released_tensors() -> None:
    """EXAONE's of vLLM's models/exaone.py; MiMo-V2.5-Pro's as the report of its tensors lists them."""
    exaone = import_config(SIZES["LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct"]["config"], "exaone", "test").model
    shapes = checkpoint_shapes(exaone, LAYOUTS[exaone.family])
    assert shapes["transformer.h.31.attn.attention.k_proj.weight"] == (1024, 4096)
    assert shapes["transformer.h.0.mlp.c_fc_0.weight"] == shapes["transformer.h.0.mlp.c_fc_1.weight"] == (14336, 4096)
    assert shapes["transformer.h.0.mlp.c_proj.weight"] == (4096, 14336)
    config = SIZES["XiaomiMiMo/MiMo-V2.5-Pro"]["config"]
    mimo = import_config(config, "mimo", "test").model
    shapes = checkpoint_shapes(mimo, LAYOUTS[mimo.family])
    assert shapes["model.layers.1.self_attn.qkv_proj.weight"] == (27136, 6144)
    assert shapes["model.layers.1.mlp.experts.383.down_proj.weight"] == (6144, 2048)
    apart = import_config(config | {"attention_projection_layout": "split"}, "mimo", "test").model
    assert "model.layers.1.self_attn.q_proj.weight" in checkpoint_shapes(apart, LAYOUTS[apart.family])
