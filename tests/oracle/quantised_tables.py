"""The tables that ``quantised.py`` counts: each method on each shape of model, and lists of modules by their rules."""

from __future__ import annotations

import re
from typing import Any

import torch

from tests.oracle.quantised import (
    BF16,
    FP8,
    FP32,
    Case,
    Decide,
    Packer,
    affine,
    awq,
    block_fp8,
    eight,
    four_bit,
    gptq,
    int8_bnb,
    marlin24,
    masked,
    mx,
    nvfp4,
    packed,
)

INT8 = torch.int8
Table = dict[str, Any]


def but(packer: Packer, *skipped: str, head: bool = False) -> Decide:
    """Everything but the head, and modules that an expression is found in."""

    def decide(name: str) -> Packer | None:
        if (name.endswith("lm_head") and not head) or any(re.search(pattern, name) for pattern in skipped):
            return None
        return packer

    return decide


def only(packer: Packer, pattern: str) -> Decide:
    return lambda name: packer if re.search(pattern, name) else None


def ct(num_bits: int = 4, kind: str = "int", ignore: Any = ("lm_head",), **more: Any) -> Table:
    """A table of compressed-tensors with one group of all linear layers."""
    beside = {key: more.pop(key) for key in ("format", "sparsity_config") if key in more}
    targets = more.pop("targets", ["Linear"])
    weights = {"num_bits": num_bits, "type": kind, "symmetric": True, "dynamic": False} | more
    group = {"targets": targets, "weights": weights, "input_activations": None}
    table = {"quant_method": "compressed-tensors", "ignore": list(ignore), "config_groups": {"group_0": group}}
    return table | beside


G128 = {"strategy": "group", "group_size": 128}
PACK = {"format": "pack-quantized"}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
ROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True}
BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
OPT = {"quant_method": "modelopt"}
QUARK = {"quant_method": "quark", "exclude": ["lm_head"], "export": {"kv_cache_group": []}}
E8M0 = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
ROW = {"dtype": "fp8_e4m3", "qscheme": "per_channel"}
DOUBLE = NF4 | {"bnb_4bit_use_double_quant": True}
TORCHAO = {"quant_method": "torchao", "modules_to_not_convert": ["lm_head"]}

GENERAL: list[tuple[str, Table, Decide]] = [
    ("gptq 4 bits, 128", GPTQ, but(gptq())),
    ("gptq 8 bits, 32", GPTQ | {"bits": 8, "group_size": 32}, but(gptq(8, 32))),
    ("awq 128", AWQ, but(awq())),
    ("auto-round 4 bits, 128", ROUND, but(gptq(index=False))),
    ("fp8 blocks", BLOCKS, but(block_fp8)),
    ("compressed-tensors W4A16", ct(**G128, **PACK), but(packed())),
    ("compressed-tensors W8A8", ct(8, strategy="channel", format="int-quantized"), but(eight(INT8, BF16))),
    ("compressed-tensors FP8", ct(8, "float", strategy="channel", format="float-quantized"), but(eight(FP8, BF16))),
    ("compressed-tensors NVFP4", ct(4, "float", strategy="tensor_group", group_size=16), but(nvfp4)),
    ("modelopt NVFP4", OPT | {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}, but(nvfp4)),
    ("modelopt FP8", OPT | {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}, but(eight(FP8))),
    ("bitsandbytes nf4, double", DOUBLE, but(four_bit(True))),
    ("quark mxfp4", QUARK | {"global_quant_config": {"weight": E8M0, "input_tensors": E8M0}}, but(mx(4))),
    ("torchao int4wo", TORCHAO | {"quant_type": "int4_weight_only"}, but(affine(4, 128))),
]
"""Methods that are counted on every shape of model."""
SHAPES = ("llama", "phi3", "qwen3_moe", "minimax_m2", "deepseek_v3", "qwen3_next", "jamba")

FORMATS: list[tuple[str, Table, Decide]] = [
    ("gptq 2 bits, 64", GPTQ | {"bits": 2, "group_size": 64}, but(gptq(2, 64))),
    ("gptq 3 bits, 128", GPTQ | {"bits": 3}, but(gptq(3))),
    ("gptq 4 bits, 32", GPTQ | {"group_size": 32}, but(gptq(4, 32))),
    ("gptq 4 bits, rows", GPTQ | {"group_size": -1}, but(gptq(4, -1))),
    ("awq 64", AWQ | {"group_size": 64}, but(awq(64))),
    ("awq 32, in capitals", AWQ | {"quant_method": "AWQ", "group_size": 32}, but(awq(32))),
    ("auto-round 2 bits, 32", ROUND | {"bits": 2, "group_size": 32}, but(gptq(2, 32, index=False))),
    ("auto-round awq", ROUND | {"packing_format": "auto_round:auto_awq"}, but(awq())),
    ("compressed-tensors W4A16, asymmetric", ct(symmetric=False, **G128, **PACK), but(packed(zero=True))),
    ("compressed-tensors W4A16, g_idx", ct(actorder="group", **G128, **PACK), but(packed(index=True))),
    ("compressed-tensors W4A16, rows", ct(strategy="channel", **PACK), but(packed(group=-1))),
    ("compressed-tensors W8A16, 128", ct(8, **G128, **PACK), but(packed(8))),
    ("compressed-tensors FP8, tensor", ct(8, "float", strategy="tensor"), but(eight(FP8))),
    ("compressed-tensors FP8, blocks", ct(8, "float", strategy="block", block_structure=[128, 128]), but(block_fp8)),
    ("compressed-tensors MXFP8", ct(8, "float", strategy="group", group_size=32), but(mx(8))),
    ("compressed-tensors MXFP4", ct(4, "float", strategy="group", group_size=32), but(mx(4))),
    ("modelopt MXFP8", OPT | {"quant_algo": "MXFP8"}, but(mx(8))),
    ("modelopt FP8 by rows", OPT | {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, but(eight(FP8, FP32))),
    ("modelopt blocks", OPT | {"quant_algo": "fp8_pb_wo"}, but(block_fp8)),
    ("fbgemm_fp8", {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, but(eight(FP8, FP32))),
    ("fp8 by tensors", {"quant_method": "fp8", "activation_scheme": "static"}, but(eight(FP8))),
    ("bitsandbytes nf4", NF4, but(four_bit(False))),
    ("bitsandbytes fp4, double", DOUBLE | {"bnb_4bit_quant_type": "fp4"}, but(four_bit(True))),
    ("bitsandbytes without its name", {"load_in_4bit": True}, but(four_bit(False))),
    ("bitsandbytes int8", {"quant_method": "bitsandbytes", "load_in_8bit": True}, but(int8_bnb)),
    ("quark fp8 by rows", QUARK | {"global_quant_config": {"weight": ROW}}, but(eight(FP8, BF16))),
    (
        "hqq 4 bits, 64",
        {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}},
        but(affine(4, 64)),
    ),
    ("eetq", {"quant_method": "eetq", "weights": "int8"}, but(eight(INT8, BF16))),
    ("torchao int8wo", TORCHAO | {"quant_type": "int8_weight_only"}, but(eight(INT8, BF16))),
    (
        "torchao float8wo",
        TORCHAO | {"quant_type": {"default": {"_type": "Float8WeightOnlyConfig", "_data": {}}}},
        but(eight(FP8, FP32)),
    ),
]
"""Further layouts, counted on a dense model and on experts."""

SPARSE: list[tuple[str, Table, Decide]] = [
    (
        "marlin-24",
        ct(
            **G128,
            format="marlin-24",
            sparsity_config={"format": "marlin_24", "sparsity_structure": "2:4", "targets": ["Linear"]},
        ),
        but(marlin24),
    ),
    (
        "sparse-24-bitmask, fp8",
        ct(
            8,
            "float",
            strategy="channel",
            sparsity_config={"format": "sparse-24-bitmask", "sparsity_structure": "2:4", "targets": ["Linear"]},
        ),
        but(masked(FP8, True)),
    ),
    (
        "sparse-24-bitmask alone",
        {
            "quant_method": "compressed-tensors",
            "ignore": ["lm_head"],
            "sparsity_config": {"format": "sparse-24-bitmask", "sparsity_structure": "2:4", "targets": ["Linear"]},
        },
        but(masked(BF16, False)),
    ),
]


def mlx(bits: int = 4, group: int = 64, **more: Any) -> Table:
    return {"group_size": group, "bits": bits} | more


def mlx_cases() -> list[Case]:
    """MLX packs the vocabulary as well, whether the head is tied or not."""
    found = []
    for family in ("llama", "phi3"):
        for bits, group in ((2, 64), (3, 64), (4, 32), (4, 64), (5, 128), (6, 64), (8, 64)):
            decide = but(affine(bits, group), head=True)
            found.append(
                Case(
                    name=f"mlx {bits} bits, {group}",
                    model=family,
                    table=mlx(bits, group),
                    decide=decide,
                    vocabulary=True,
                )
            )
        entry = mlx(lm_head=mlx(8), **{"model.layers.0.mlp.down_proj": False})

        def decide_entry(name: str) -> Packer | None:
            return None if name == "model.layers.0.mlp.down_proj" else affine(8 if name == "lm_head" else 4, 64)

        found.append(
            Case(
                name="mlx with entries",
                model=family,
                table=entry,
                decide=decide_entry,
                vocabulary=True,
                key="quantization",
            )
        )
        modes = mlx(4, 32, mode="mxfp4")
        found.append(Case(name="mlx mxfp4", model=family, table=modes, decide=but(mx(4), head=True), vocabulary=True))
    return found


LAST = [
    f"model.layers.3.{leaf}" for leaf in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.down_proj")
]
Q = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
DYNAMIC = {"-:.*self_attn.*": {}, "+:.*down_proj": {"bits": 8, "group_size": 64}}
MIXED = {f"model.layers.{i}.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16} for i in range(4)}
MIXED |= {f"model.layers.{i}.self_attn.o_proj": {"quant_algo": "FP8"} for i in range(4)}
AUTO = {"model.layers.0.self_attn.q_proj": {"bits": 8}, ".*mlp.*": {"bits": 16, "data_type": "float"}}
QUARK_LAYERS = {"*self_attn*": {"weight": ROW}}
MODULES = {"_type": "ModuleFqnToConfig", "_data": {"module_fqn_to_config": {}}}
NAMED = {"_default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 64}}, r"re:.*\.self_attn\..*": None}
MODULES["_data"] = {"module_fqn_to_config": NAMED}


def either(name: str, *choices: tuple[str, Packer | None]) -> Packer | None:
    """The packer of the first expression that is found in a name."""
    return next((packer for pattern, packer in choices if re.search(pattern, name)), None)


RULES: list[tuple[str, str, Table, Decide]] = [
    ("llama", "awq, inner name", AWQ | {"modules_to_not_convert": ["self_attn"]}, but(awq(), "self_attn")),
    ("llama", "awq, one layer", AWQ | {"modules_to_not_convert": ["model.layers.0."]}, but(awq(), r"layers\.0\.")),
    (
        "qwen3_next",
        "awq, shared expert",
        AWQ | {"modules_to_not_convert": ["shared_expert"]},
        but(awq(), "shared_expert"),
    ),
    ("llama", "fp8, inner name", BLOCKS | {"modules_to_not_convert": ["mlp"]}, but(block_fp8, r"\.mlp\.")),
    (
        "qwen3_moe",
        "fp8, names",
        BLOCKS | {"modules_to_not_convert": LAST[:3]},
        but(block_fp8, r"3\.self_attn\.[qkv]_proj"),
    ),
    ("minimax_m2", "fp8, gate is a router", BLOCKS | {"modules_to_not_convert": ["gate", "lm_head"]}, but(block_fp8)),
    ("llama", "nf4, inner name", NF4 | {"llm_int8_skip_modules": ["lm_head", "mlp"]}, but(four_bit(False), "mlp")),
    ("deepseek_v3", "nf4, one part", NF4 | {"llm_int8_skip_modules": ["kv_b_proj"]}, but(four_bit(False), "kv_b_proj")),
    (
        "llama",
        "gptq, dynamic",
        GPTQ | {"dynamic": DYNAMIC},
        lambda n: None if "lm_head" in n else either(n, ("self_attn", None), ("down_proj", gptq(8, 64)), ("", gptq())),
    ),
    ("qwen3_moe", "gptq, dynamic without experts", GPTQ | {"dynamic": {"-:.*experts.*": {}}}, but(gptq(), "experts")),
    (
        "llama",
        "gptq, modules in block",
        GPTQ | {"modules_in_block_to_quantize": [Q[:3], Q[3:]]},
        only(gptq(), "self_attn"),
    ),
    ("llama", "gptq, head", GPTQ | {"lm_head": True}, but(gptq(), head=True)),
    ("llama", "compressed-tensors, head", ct(**G128, **PACK, ignore=()), but(packed(), head=True)),
    ("deepseek_v3", "compressed-tensors, head", ct(**G128, **PACK, ignore=()), but(packed(), head=True)),
    (
        "llama",
        "compressed-tensors, targets",
        ct(**G128, **PACK, targets=["re:.*self_attn.*"]),
        only(packed(), "self_attn"),
    ),
    (
        "deepseek_v3",
        "compressed-tensors, ignored",
        ct(**G128, **PACK, ignore=["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"]),
        but(packed(), "self_attn|shared_experts"),
    ),
    (
        "gemma4_text",
        "modelopt, dense and attention out",
        OPT
        | {
            "quant_algo": "NVFP4",
            "exclude_modules": [
                "lm_head",
                *(f"model.layers.{i}.{part}*" for i in range(4) for part in ("mlp", "self_attn", "router")),
            ],
        },
        but(nvfp4, "self_attn", r"\.mlp\."),
    ),
    (
        "gemma4_text",
        "modelopt, attention out",
        OPT | {"quant_algo": "NVFP4", "exclude_modules": ["lm_head", "*self_attn*"]},
        but(nvfp4, "self_attn"),
    ),
    (
        "deepseek_v3",
        "modelopt, wildcards",
        OPT | {"quant_algo": "NVFP4", "exclude_modules": ["lm_head", "model.layers.0*", "*kv_b_proj"]},
        but(nvfp4, r"layers\.0\.", "kv_b_proj"),
    ),
    (
        "qwen3_next",
        "modelopt, linear attention out",
        OPT | {"quant_algo": "NVFP4", "exclude_modules": ["lm_head", "*linear_attn*"]},
        but(nvfp4, "linear_attn"),
    ),
    (
        "qwen3_moe",
        "modelopt, by layer",
        OPT | {"quant_algo": "MIXED_PRECISION", "quantized_layers": MIXED},
        lambda n: either(n, ("experts", nvfp4), ("o_proj", eight(FP8))),
    ),
    (
        "llama",
        "auto-round, entries",
        ROUND | {"extra_config": AUTO},
        lambda n: (
            None
            if "lm_head" in n
            else either(
                n, (r"layers\.0\.self_attn\.q_proj", gptq(8, index=False)), ("mlp", None), ("", gptq(index=False))
            )
        ),
    ),
    ("llama", "auto-round, blocks", ROUND | {"block_name_to_quantize": "model.layers"}, but(gptq(index=False))),
    (
        "llama",
        "quark, by layer",
        QUARK | {"global_quant_config": {"weight": E8M0}, "layer_quant_config": QUARK_LAYERS},
        lambda n: None if "lm_head" in n else either(n, ("self_attn", eight(FP8, BF16)), ("", mx(4))),
    ),
    (
        "deepseek_v3",
        "quark, attention out",
        QUARK | {"exclude": ["lm_head", "*self_attn*"], "global_quant_config": {"weight": E8M0}},
        but(mx(4), "self_attn"),
    ),
    (
        "llama",
        "torchao, by module",
        {"quant_method": "torchao", "quant_type": MODULES},
        but(affine(4, 64), "self_attn"),
    ),
    (
        "gpt_oss",
        "mxfp4",
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
        only(mx(4), "experts"),
    ),
    ("jamba", "gptq, no state space", GPTQ | {"dynamic": {"-:.*mamba.*": {}}}, but(gptq(), "mamba")),
]

CASES: list[Case] = [
    *(Case(name=name, model=m, table=table, decide=d) for m in SHAPES for name, table, d in GENERAL),
    *(
        Case(name=name, model=m, table=t, decide=d)
        for m in ("llama", "qwen3_moe")
        for name, t, d in [*FORMATS, *SPARSE]
    ),
    *mlx_cases(),
    *(Case(name=name, model=family, table=table, decide=d) for family, name, table, d in RULES),
]
