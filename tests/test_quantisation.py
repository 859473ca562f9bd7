"""Quantisation tables: bytes that a reader can check by hand, rules of loaders, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferplan.errors import SpecError
from inferplan.models.huggingface import import_config
from inferplan.models.huggingface.quantisation.rules import (
    Module,
    by_component,
    by_name,
    by_path,
    by_substring,
    by_transformers,
    by_wildcard,
    tells_experts,
)
from inferplan.models.spec import ModelSpec
from tests.builders import LLAMA_3_1_8B
from tests.cases import for_each

LLAMA = LLAMA_3_1_8B | {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}
"""Llama-3.1-8B: 218,103,808 weights in the linear layers of each layer, 525,336,576 in each vocabulary table."""
ATTENTION, LAYER, TABLE, NORMS = 41_943_040, 218_103_808, 525_336_576, 266_240
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
W4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True, "dynamic": False}


def ct(
    weights: dict[str, Any] = W4, targets: tuple[str, ...] = ("Linear",), ignore: Any = ("lm_head",), **more: Any
) -> Any:
    group = {"targets": list(targets), "weights": weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": list(ignore),
        "config_groups": {"group_0": group},
    } | more


def llama(table: dict[str, Any] | None, **more: Any) -> ModelSpec:
    config = LLAMA | more | ({"quantization_config": table} if table else {})
    return import_config(config, "llama", "test").model


def gigabytes(table: dict[str, Any]) -> float:
    return llama(table).checkpoint_bytes / 1e9


def test_the_counts_that_these_tests_stand_on():
    assert llama(None).checkpoint_bytes == 2 * (32 * LAYER + 2 * TABLE + NORMS)


QKVO = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
SPARSE = {"format": "marlin_24", "sparsity_structure": "2:4", "targets": ["Linear"]}


@for_each(
    ("table", "expected"),
    [
        (AWQ | {"modules_to_not_convert": ["self_attn"]}, 7.715),
        (AWQ | {"modules_to_not_convert": ["model.layers.0."]}, 6.051),
        (FP8 | {"modules_to_not_convert": ["lm_head", "mlp"]}, 14.719),
        (NF4 | {"llm_int8_skip_modules": ["lm_head", "self_attn"]}, 7.957),
        (GPTQ | {"dynamic": {"-:.*self_attn.*": {}}}, 7.718),
        (GPTQ | {"dynamic": {"+:.*down_proj.*": {"bits": 8, "group_size": 128}}}, 6.680),
        (GPTQ | {"modules_in_block_to_quantize": [QKVO]}, 14.076),
        (GPTQ | {"lm_head": True}, 4.955),
        (ct(ignore=()), 4.921),
        (ct(format="marlin-24", sparsity_config=SPARSE), 4.828),
        (ct({"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32}), 9.299),
        (NF4 | {"bnb_4bit_quant_type": "fp4", "bnb_4bit_use_double_quant": True}, 5.702),
    ],
)
def test_tables_that_were_read_wrongly(table, expected):
    """Each was 2 to 59 % off; the expected bytes are recounted from the modules of the class, to 3 decimals."""
    assert gigabytes(table) == pytest.approx(expected, abs=6e-4)


def by_hand(
    bits: float, beside_row: float = 0, beside_column: float = 0, group: float = 0, head: bool = False
) -> float:
    """Bytes of the same Llama: element bits and what each group has, and bits beside each row and each column."""
    shapes = [(4096, 4096)] * 2 + [(1024, 4096)] * 2 + [(14336, 4096)] * 2 + [(4096, 14336)]
    each = sum(bits * n * k + beside_row * n + beside_column * k + (group * n * k) for n, k in shapes)
    tables = 1 if head else 2
    top = (bits + group) * TABLE + beside_row * 128256 + beside_column * 4096 if head else 0
    return (32 * each + top + 16 * (tables * TABLE + NORMS)) / 8


TORCHAO = {"quant_method": "torchao"}
MLX = {"group_size": 64, "bits": 4}
QUARK = {"quant_method": "quark", "export": {"kv_cache_group": [], "pack_method": "reorder"}, "exclude": ["lm_head"]}
F8 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False}
MX = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0", "symmetric": None}
HQQ = {"weight_quant_params": {"nbits": 4, "group_size": 64, "axis": 1}, "scale_quant_params": None}


@for_each(
    ("table", "name", "expected"),
    [
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True}, "int4", by_hand(4, group=20 / 128)),
        (
            {"quant_method": "intel/auto-round", "bits": 2, "group_size": 32, "packing_format": "auto_round:auto_gptq"},
            "int2-g32z",
            by_hand(2, group=18 / 32),
        ),
        (GPTQ | {"bits": 3}, "int3-gptq", by_hand(3, beside_column=32, group=19 / 128)),
        (GPTQ | {"bits": 8, "group_size": 32}, "int8-gptq-g32", by_hand(8, beside_column=32, group=24 / 32)),
        (GPTQ | {"group_size": -1}, "int4-gptq-channel", by_hand(4, beside_row=20, beside_column=32)),
        (AWQ | {"quant_method": "AWQ"}, "int4", by_hand(4, group=20 / 128)),
        ({"load_in_4bit": True}, "fp4", by_hand(4, group=32 / 64)),
        ({"load_in_8bit": True}, "int8-row", by_hand(8, beside_row=32)),
        (ct(W4 | {"num_bits": 8}), "int8-g128", by_hand(8, group=16 / 128)),
        (ct(W4 | {"actorder": "group"}), "int4-g128-idx", by_hand(4, beside_column=32, group=16 / 128)),
        (ct(W4 | {"actorder": "static"}), "int4-g128", by_hand(4, group=16 / 128)),
        (
            TORCHAO | {"quant_type": "int4_weight_only", "quant_type_kwargs": {"group_size": 32}},
            "int4-g32b",
            by_hand(5),
        ),
        (TORCHAO | {"quant_type": "int8_weight_only"}, "int8-channel", by_hand(8, beside_row=16)),
        (
            TORCHAO | {"quant_type": {"default": {"_type": "Float8WeightOnlyConfig", "_data": {}, "_version": 1}}},
            "fp8-row",
            by_hand(8, beside_row=32),
        ),
        (QUARK | {"global_quant_config": {"weight": F8, "input_tensors": F8}}, "fp8", by_hand(8)),
        (QUARK | {"global_quant_config": {"weight": MX, "input_tensors": MX}}, "mxfp4", by_hand(4, group=8 / 32)),
        ({"quant_method": "hqq", "quant_config": HQQ, "skip_modules": ["lm_head"]}, "int4-g64b", by_hand(4.5)),
        (FP8 | {"weight_block_size": [1, 32], "scale_fmt": "ue8m0"}, "mxfp8", by_hand(8.25)),
        ({"quant_method": "gemma", "num_bits": 4}, "int4-row", by_hand(4, beside_row=32)),
        ({"quant_method": "eetq", "weights": "int8", "modules_to_not_convert": ["lm_head"]}, "int8-channel", None),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ", "exclude_modules": ["lm_head"]}, "int4-g128", None),
    ],
)
def test_formats_that_were_refused(table, name, expected):
    model = llama(table)
    assert model.native.weights == name
    if expected is not None:
        assert model.checkpoint_bytes == expected


@for_each(
    ("more", "bits"),
    [
        ({}, 4 + 32 / 64),
        ({"bits": 3, "group_size": 128}, 3.25),
        ({"bits": 6, "group_size": 32}, 7),
        ({"mode": "mxfp4", "group_size": 32}, 4.25),
        ({"mode": "nvfp4", "group_size": 16}, 4.5),
    ],
)
def test_mlx_quantises_the_vocabulary_too(more, bits):
    """``mlx.nn.quantize``: every Linear and Embedding; norms stay in 16 bits."""
    table = MLX | more
    model = import_config(LLAMA | {"quantization": table, "quantization_config": table}, "mlx", "test").model
    assert model.checkpoint_bytes == (32 * LAYER + 2 * TABLE) * bits / 8 + 2 * NORMS


def test_an_entry_of_mlx_for_one_module():
    table = MLX | {"lm_head": {"group_size": 64, "bits": 8}, "model.layers.0.mlp.down_proj": False}
    native = import_config(LLAMA | {"quantization": table}, "mlx", "test").model.native
    assert (native.embedding, native.head) == ("int4-g64b", "int8-g64b")
    assert [e.model_dump() for e in native.exceptions] == [{"tensors": ["down"], "format": "bf16", "layers": [0]}]


def test_a_head_that_mlx_leaves_alone():
    """``mlx_lm``'s ``class_predicate``: where the path of a module is a key of the table, its value decides."""
    native = import_config(LLAMA | {"quantization": MLX | {"lm_head": False}}, "mlx", "test").model.native
    assert (native.head or native.base) == "bf16"
    assert native.embedding == "int4-g64b"


@for_each("bits", [[], [1], {"a": 1}])
def test_inputs_of_no_number_of_bits(bits):
    table = ct()
    table["config_groups"]["group_0"]["input_activations"] = {"num_bits": bits, "type": "int"}
    with pytest.raises(SpecError, match=r"input_activations\.num_bits"):
        llama(table)


def test_auto_round_gives_modules_their_own_bits():
    own = {"model.layers.3.mlp.down_proj": {"bits": 8}, ".*self_attn.*": {"bits": 16, "data_type": "fp"}}
    table = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True, "extra_config": own}
    found = {tuple(e.tensors): (e.format, e.layers) for e in llama(table).native.exceptions}
    assert found == {("q", "k", "v", "o"): ("bf16", []), ("down",): ("int8-g128z", [3])}


GEMMA4 = {
    "model_type": "gemma4_text",
    "hidden_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "global_head_dim": 512,
    "num_global_key_value_heads": 2,
    "attention_k_eq_v": True,
    "intermediate_size": 2048,
    "enable_moe_block": True,
    "num_experts": 64,
    "top_k_experts": 8,
    "moe_intermediate_size": 704,
    "sliding_window": 1024,
    "hidden_size_per_layer_input": 0,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 2,
    "num_kv_shared_layers": 0,
    "hidden_activation": "gelu_pytorch_tanh",
    "use_double_wide_mlp": False,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": True,
    "vocab_size": 262144,
    "vocab_size_per_layer_input": 262144,
}


@for_each(("parts", "expected"), [(("router", "self_attn"), 3.677), (("mlp", "router", "self_attn"), 3.894)])
def test_experts_of_gemma_4_are_not_its_mlp(parts, expected):
    """151 M weights of the dense MLP at 4.5 bits, or at 16; the experts are ``layers.N.experts``."""
    ignored = [f"model.layers.{i}.{part}*" for i in range(12) for part in parts] + ["lm_head"]
    table = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ignored}
    model = import_config(GEMMA4 | {"quantization_config": table}, "gemma", "test").model
    assert model.native.experts == "nvfp4"
    assert model.checkpoint_bytes / 1e9 == pytest.approx(expected, abs=5e-4)


def test_the_shared_expert_of_llama_4(shared):
    """Named one by one, or by expressions: 118.90 GB, and a 16-bit scale for each row of an expert (0.03 %)."""
    path = shared / "model_configs" / "meta-llama--Llama-4-Scout-17B-16E-Instruct.json"
    config = {key: value for key, value in json.loads(path.read_text()).items() if not key.startswith("_")}
    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
    inputs = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}
    leaves = [*QKVO, "feed_forward.router", *(f"feed_forward.shared_expert.{x}_proj" for x in ("gate", "up", "down"))]
    named = [
        "language_model.lm_head",
        *(f"language_model.model.layers.{i}.{leaf}" for i in range(48) for leaf in leaves),
    ]
    for ignore in (named, ["re:.*lm_head", "re:.*self_attn", "re:.*router", "re:.*shared_expert", "re:vision_model.*"]):
        table = ct(weights, ignore=ignore, format="float-quantized")
        table["config_groups"]["group_0"]["input_activations"] = inputs
        stored = import_config(config | {"quantization_config": table}, "scout", "test").model.checkpoint_bytes
        assert stored / 1e9 == pytest.approx(118.90, rel=5e-4)


def module(name: str) -> Module:
    return Module(name, f"model.{name}")


def test_the_rules_of_loaders_differ():
    """vLLM's fp8 takes whole names, SGLang parts, AWQ substrings, bitsandbytes one part, transformers both ends."""
    inner, gate = module("layers.1.self_attn.q_proj"), module("layers.1.mlp.gate_proj")
    rules = {"name": by_name, "path": by_path, "substring": by_substring, "part": by_component, "own": by_transformers}

    def means(pattern: str, at: Module) -> list[str]:
        return [name for name, rule in rules.items() if rule([pattern])(at) is not None]

    assert means("self_attn", inner) == ["path", "substring", "part"]
    assert means("model.layers.1.self_attn.q_proj", inner) == list(rules)
    assert means("gate", gate) == ["substring"]
    assert means("layers.1", inner) == ["path", "substring", "part"]
    assert means("q_proj", inner) == ["path", "substring", "part", "own"]
    assert by_wildcard(["model.layers.1*"])(module("layers.12.mlp.up_proj")) == "model.layers.1*"
    assert by_wildcard(["model.layers.1.*"])(module("layers.12.mlp.up_proj")) is None


def test_where_loaders_differ_the_model_says_so():
    notes = llama(AWQ | {"modules_to_not_convert": ["self_attn"]}).notes
    assert [note for note in notes if "transformers differs in 1,342,177,280 weights" in note]
    assert not llama(AWQ | {"modules_to_not_convert": ["lm_head"]}).notes


@for_each(
    ("table", "said"),
    [
        (GPTQ | {"brand_new": 1}, "quantization_config.brand_new"),
        (GPTQ | {"brand_new": 0}, "quantization_config.brand_new"),
        (GPTQ | {"dynamic": {"+:.*": {"bits": 4, "brand_new": 1}}}, "brand_new"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format"),
        (GPTQ | {"bits": 5}, "bits = 5"),
        (AWQ | {"version": "marlin"}, "version"),
        (AWQ | {"bits": 3}, "bits = 3"),
        (ct(W4 | {"strategy": "tensor", "group_size": None}), "strategy = 'tensor'"),
        (ct(W4 | {"actorder": "sideways"}), "actorder = 'sideways'"),
        (ct(targets=("re:(",)), "no expression"),
        (GPTQ | {"dynamic": {"-:(": {}}}, "no expression"),
        (FP8 | {"activation_scheme": "guessed"}, "activation_scheme"),
        (NF4 | {"llm_int8_has_fp16_weight": True}, "llm_int8_has_fp16_weight"),
        (ct(targets=("LlamaAttention",)), "LlamaAttention"),
        (ct(transform_config={"config_groups": {"R1": {}}}), "transform_config"),
        (ct(W4 | {"brand_new": 1}), "weights.brand_new"),
        (ct(W4 | {"num_bits": 3}), "num_bits = 3"),
        (ct(format="int-quantized"), "num_bits = 4"),
        (ct(sparsity_config={"format": "sparse-bitmask", "sparsity_structure": "unstructured"}), "sparsity_config"),
        (FP8 | {"weight_block_size": [64, 64]}, "weight_block_size"),
        (FP8 | {"expert_dtype": "fp6"}, "expert_dtype"),
        (FP8 | {"weight_block_size": [1, 32]}, "weight_block_size"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32}, "group_size"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "brand_new": True}, "brand_new"),
        ({"quant_method": "aqlm"}, "aqlm"),
        ({"quant_method": "quanto"}, "quanto"),
        ({"bits": 4}, "quant_method"),
        (MLX | {"bits": 7}, "bits = 7"),
        (MLX | {"model.layers.0.mlp.down_proj": {"bits": 8}}, "must state both"),
        (QUARK | {"global_quant_config": {"weight": [F8, F8]}}, "weight"),
        (QUARK | {"global_quant_config": {"weight": MX | {"dtype": "fp6_e3m2"}}}, "fp6_e3m2"),
        (TORCHAO | {"quant_type": "uintx_weight_only"}, "uintx"),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "act_bits": 8}, "act_bits"),
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 3, "group_size": 64}}}, "nbits = 3"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(table, said):
    with pytest.raises(SpecError) as error:
        llama(table)
    assert said in str(error.value)


def test_some_of_the_experts_is_refused():
    config = json.loads(json.dumps(LLAMA | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}))
    ignored = ["lm_head", "model.layers.0.block_sparse_moe.experts.3*"]
    table = {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ignored}
    with pytest.raises(
        SpecError, match=r"expert.gate of layer 0 is one tensor here, and its modules are in bf16, nvfp4"
    ):
        import_config(config | {"quantization_config": table}, "mixtral", "test")


@for_each(
    ("text", "some"),
    [
        ("model.layers.3.mlp.experts", False),
        ("model.layers.3.mlp.experts.4.up_proj", True),
        ("re:.*experts.*w1", False),
        (r"re:.*experts\.(1|2)\..*", True),
        (r"-:.*experts\.\d+.*", True),
        ("*experts.?.*", True),
        ("0.46.0.dev1", False),
    ],
)
def test_whether_a_pattern_tells_experts_apart(text, some):
    """Only then all of them are asked: Kimi-K2.5 has 384 in each of 60 layers."""
    assert tells_experts({"ignore": [text]}) == some == tells_experts({text: {}})


def test_a_family_whose_names_are_not_known_is_refused():
    fields = {"model_type": "palm", "head_dim": 128, "num_key_value_heads": 1}
    with pytest.raises(SpecError, match="names that checkpoints of palm"):
        import_config(LLAMA | fields | {"quantization_config": GPTQ}, "palm", "test")


def test_the_table_is_not_said_to_be_ignored():
    assert "quantization_config" not in import_config(LLAMA | {"quantization_config": GPTQ}, "x", "test").ignored


VISION = {"depth": 2, "hidden_size": 64, "num_heads": 4, "intermediate_size": 96, "out_hidden_size": 4096}
VISION |= {"patch_size": 16, "temporal_patch_size": 2, "spatial_merge_size": 2, "in_channels": 3}


@for_each(("skips", "said"), [([], 1), (["visual"], 0), (["model.visual", "lm_head"], 0)])
def test_towers_that_a_table_does_not_leave_out_are_noted(skips, said):
    """Their bytes stay those of 16 bits."""
    text = {key: value for key, value in LLAMA.items() if key != "architectures"} | {"model_type": "qwen3_vl_text"}
    vision = VISION | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
    config = {"model_type": "qwen3_vl", "text_config": text | {"head_dim": 128}, "vision_config": vision}
    table = AWQ | {"modules_to_not_convert": skips}
    model = import_config(config | {"quantization_config": table}, "vl", "test").model
    assert model.towers
    assert len([note for note in model.notes if note.startswith("towers are counted in bf16")]) == said


def test_an_unquantised_base_in_fp16_stays_so():
    native = llama(AWQ, dtype="float16").native
    assert (native.base, native.weights) == ("fp16", "int4")


@for_each(
    ("table", "field"),
    [
        ({"quant_method": "gptq", "bits": 4}, "group_size"),
        ({"quant_method": "awq", "bits": 4}, "group_size"),
        ({"quant_method": "auto-round", "bits": 4}, "group_size"),
        ({"quant_method": "modelopt"}, "quant_algo"),
        ({"quant_method": "quark"}, "global_quant_config"),
    ],
)
def test_a_table_that_does_not_say_its_format_is_refused(table, field):
    """None of these is a checkpoint in bf16, nor one with a scale for each channel."""
    with pytest.raises(SpecError, match=field):
        import_config(LLAMA | {"quantization_config": table}, "x", "test")
