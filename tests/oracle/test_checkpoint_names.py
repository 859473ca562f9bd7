"""The names and shapes of checkpoints against what transformers writes for the models it builds on the meta device."""

from __future__ import annotations

import json
import re
import struct
from math import prod

import pytest

from inferplan.models.huggingface import import_path, model_from_config
from inferplan.models.huggingface.quantisation import LAYOUTS, checkpoint_shapes
from tests.cases import for_each
from tests.oracle.zoo import sample

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

_BESIDE_TOWERS = "it has no causal model of its own"
NOT_BUILT = {
    "dbrx": "the class does not accept its own default config",
    "dots1": "its router is not built on the meta device",
    "glm4v_text": _BESIDE_TOWERS,
    "glm4v_moe_text": _BESIDE_TOWERS,
    "qwen3_omni_moe_text": _BESIDE_TOWERS,
    "mllama_text_model": _BESIDE_TOWERS,
    "deepseek_v4": "transformers keeps the root that the release has not",
    "minimax_m3_vl_text": "transformers writes stacked experts; the release has one module each",
    "kimi_linear": "transformers writes its dense layer under the name of its experts; the release has it as mlp",
}
FIELDS = {
    "deepseek_v2": {"num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "glm4_moe": {"num_attention_heads": 32, "hidden_size": 4096},
    "bamba": {"attn_layer_indices": [3]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2, "num_hidden_layers": 4, "num_local_experts": 4},
    "qwen3_5_text": {"num_hidden_layers": 4},
    "gemma4_text": {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 96},
    "hunyuan_v1_moe": {"head_dim": 128},
    "hunyuan_v1_dense": {"head_dim": 128},
    "nemotron": {"head_dim": 128, "num_key_value_heads": 8},
    "ministral": {"head_dim": 128},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2, "num_hidden_layers": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2, "num_hidden_layers": 4},
    "granitemoeshared": {"shared_intermediate_size": 128},
}
BESIDE = re.compile(
    r".*(bias|conv1d|conv_1d|conv\.conv|A_log|router|mlp\.gate|gate\.wg|forward\.gate|moe\.gate|mixer\.gate|_decay|slope_rate|time_mix_\w+|wpe|altup\.\w+"
    r"|expert_gate|embed_positions|statics\.\w+|rg_lru\.\w+|weights_proj|router\.\w+|hc_fn|hc_head_fn)(\.weight)?$"
)
"""What is no matrix of a linear layer or of the vocabulary, or a matrix that stays wide (routers)."""
TRANSPOSED = ("gpt2", "gpt_bigcode", "gpt_oss", "llama4_text")


def written(model) -> dict[str, tuple[int, ...]]:
    from transformers.core_model_loading import revert_weight_conversion

    tensors = revert_weight_conversion(model, model.state_dict())
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


@for_each("family", sample(name for name in LAYOUTS if name not in NOT_BUILT))
def test_names_and_shapes_are_those_that_transformers_writes(family):
    if family not in transformers.CONFIG_MAPPING:
        pytest.skip("not in this transformers")
    config = transformers.CONFIG_MAPPING[family](**FIELDS.get(family, {}))
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(config)
    model = model_from_config(config.to_dict() | {"model_type": family}, family, "test")
    expected = {name: shape for name, shape in written(built).items() if not BESIDE.fullmatch(name) and len(shape) > 1}
    found = checkpoint_shapes(model, LAYOUTS[family])
    if model.tied:
        expected = {name: shape for name, shape in expected.items() if name != f"{LAYOUTS[family].head}.weight"}
    if family in TRANSPOSED:
        expected, found = ({k: tuple(sorted(v)) for k, v in table.items()} for table in (expected, found))
    assert found == expected


def save_headers(folder, tensors, config):
    """A folder as save_pretrained leaves it, with holes in place of the numbers."""
    header, at = {}, 0
    for name, shape in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + 2 * prod(shape)]}
        at += 2 * prod(shape)
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
    (folder / "config.json").write_text(json.dumps(config))


FEW = {"num_hidden_layers": 2}
SPARSE = FEW | {"n_routed_experts": 8, "num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 2}
FOLDERS = {
    **dict.fromkeys(("llama", "qwen2", "qwen3", "gemma2", "phi3", "olmo2", "starcoder2", "cohere", "glm4"), FEW),
    "gpt2": {"n_layer": 2},
    "opt": FEW,
    "bloom": {"n_layer": 2},
    "falcon": FEW,
    "gpt_neox": FEW,
    "mpt": {"n_layers": 2},
    **dict.fromkeys(("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss", "minimax_m2", "granitemoe"), SPARSE),
    "deepseek_v3": SPARSE | {"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
    "mamba2": FEW,
    "jamba": SPARSE,
}


@for_each("family", FOLDERS)
def test_a_folder_that_transformers_wrote_is_the_model_of_its_config(family, tmp_path):
    if family not in transformers.CONFIG_MAPPING:
        pytest.skip("not in this transformers")
    config = transformers.CONFIG_MAPPING[family](**FOLDERS[family])
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(config)
    tensors = {name: shape for name, shape in written(built).items() if name in saved(built)}
    save_headers(tmp_path, tensors, config.to_dict() | {"model_type": family, "dtype": "bfloat16"})
    model = import_path(tmp_path).model
    assert not any("stored as" in note for note in model.notes)


def saved(model) -> set[str]:
    """What save_pretrained writes: a tied head once, and no buffers that are made when it is loaded."""
    from transformers.core_model_loading import revert_weight_conversion

    kept = revert_weight_conversion(model, model.state_dict())
    tied = model.all_tied_weights_keys if hasattr(model, "all_tied_weights_keys") else {}
    return {name for name in kept if name not in tied}


@for_each(
    ("outer", "builds", "family"),
    [
        ("mllama", "MllamaForConditionalGeneration", "mllama_text_model"),
        ("glm4v", "Glm4vForConditionalGeneration", "glm4v_text"),
        ("glm4v_moe", "Glm4vMoeForConditionalGeneration", "glm4v_moe_text"),
        ("qwen3_omni_moe", "Qwen3OmniMoeThinkerForConditionalGeneration", "qwen3_omni_moe_text"),
    ],
)
def test_names_beside_towers(outer, builds, family):
    """Every matrix of the language model is one that the layout names."""
    config = transformers.CONFIG_MAPPING[outer]()
    with torch.device("meta"):
        built = getattr(transformers, builds)(getattr(config, "thinker_config", config))
    inside = re.compile(r".*?(?<!blocks\.)\blayers\.\d+\.(?P<leaf>.*)\.weight")
    names = [name for name in written(built) if not re.search(r"visual|vision|audio|norm", name)]
    leaves = {re.sub(r"experts\.\d+", "experts.{}", m["leaf"]) for n in names if (m := inside.fullmatch(n))}
    known = {module for modules in LAYOUTS[family].names.values() for module in modules}
    assert {leaf for leaf in leaves if leaf != "mlp.gate"} <= known
    assert len(leaves) >= 6
