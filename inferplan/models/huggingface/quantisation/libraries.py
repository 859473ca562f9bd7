"""MLX, torchao and Quark."""

from __future__ import annotations

import re
from typing import Any

from inferplan.models.huggingface.quantisation.rules import (
    Module,
    by_expression,
    by_glob,
    by_path,
    by_transformers,
)
from inferplan.models.huggingface.quantisation.scheme import (
    Scheme,
    expression,
    finish,
    is_head,
    known,
    names,
    refuse,
    tables,
)
from inferplan.models.huggingface.reader import Reader

_EXPERTS = re.compile(r"\bexperts(\.\d+)?\.(?=\w+$)")
_EXPERT_LEAVES = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
_MODES = {"mxfp4": ("mxfp4", 32, 4), "nvfp4": ("nvfp4", 16, 4), "mxfp8": ("mxfp8", 32, 8)}


def mlx(table: Reader) -> Scheme:
    """MLX: every linear layer and every embedding whose columns are whole groups; a module's own entry wins.

    ``mlx.nn.quantize``: affine groups have a scale and a bias in 16 bits. Experts are ``switch_mlp`` there.
    """
    default = _mlx_format(table)
    own: dict[str, str | None] = {}
    for name, said in table.config.items():
        if isinstance(said, dict) and ("." in name or name in ("lm_head", "embed_tokens")):
            inner = Reader(said, table.name, f"{table.prefix}{name}.")
            own[name] = _mlx_format(inner, default[1])
            finish(inner)
        elif said is False and ("." in name or name in ("lm_head", "embed_tokens")):
            own[name] = None
        else:
            continue
        table.skip(name)
    finish(table, "quant_method", "linear_class", "quantize_activations")
    named = by_path(own)

    def stored(module: Module) -> str | None:
        entry = named(_as_mlx(module)) or named(module)
        return own[entry] if entry is not None else default[0]

    return Scheme(stored=stored, divides=True)


def _mlx_format(table: Reader, inherited: str | None = None) -> Any:
    """The format of a table; with that of the whole config in ``inherited``, for one module."""
    mode = str(table.get("mode") or inherited or "affine")
    bits, size = table.get("bits"), table.get("group_size")
    if mode in _MODES:
        name, group, width = _MODES[mode]
        if size not in (None, group) or bits not in (None, width):
            raise refuse(table, f"mode = {mode!r}", f"it has {width} bits in groups of {group}")
    elif mode != "affine":
        raise refuse(table, f"mode = {mode!r}", f"only affine, {', '.join(_MODES)} are known")
    elif inherited is None or (bits is not None and size is not None):
        name = known(table, f"bits = {bits}, group_size = {size}", f"int{bits}-g{size}b")
    else:
        raise refuse(table, f"bits = {bits}, group_size = {size}", "a module's entry must state both")
    return name if inherited is not None else (name, mode)


def _as_mlx(module: Module) -> Module:
    """The module under MLX's own name: experts stacked as ``switch_mlp``."""
    name = _EXPERTS.sub("switch_mlp.", module.name)
    head, _, leaf = name.rpartition(".")
    name = f"{head}.{_EXPERT_LEAVES[leaf]}" if leaf in _EXPERT_LEAVES and "switch_mlp" in name else name
    return Module(name, module.full.removesuffix(module.name) + name, module.kind)


_TORCHAO = {
    "int4_weight_only": "Int4WeightOnlyConfig",
    "int8_weight_only": "Int8WeightOnlyConfig",
    "int8_dynamic_activation_int8_weight": "Int8DynamicActivationInt8WeightConfig",
    "float8_weight_only": "Float8WeightOnlyConfig",
    "float8_dynamic_activation_float8_weight": "Float8DynamicActivationFloat8WeightConfig",
    "int4wo": "Int4WeightOnlyConfig",
    "int8wo": "Int8WeightOnlyConfig",
    "int8dq": "Int8DynamicActivationInt8WeightConfig",
    "float8wo": "Float8WeightOnlyConfig",
    "float8dq": "Float8DynamicActivationFloat8WeightConfig",
}
_TORCHAO_SETTINGS = (
    *("layout", "inner_k_tiles", "use_hqq", "zero_point_domain", "set_inductor_config", "preserve_zero", "VERSION"),
    *("int4_packing_format", "int4_choose_qparams_algorithm", "act_mapping_type", "weight_only_decode", "mm_config"),
    *(
        "activation_dtype",
        "activation_value_lb",
        "activation_value_ub",
        "kernel_preference",
        "packing_format",
        "version",
    ),
    *("weight_dtype", "float8_packing_format", "dtype", "use_cutlass"),
)


def torchao(table: Reader) -> Scheme:
    """torchao: a config by name with its settings, or one for each module (``FqnToConfig``).

    The head and the embedding stay wide unless they are asked for; transformers leaves out what a pattern means.
    """
    said, settings = table.get("quant_type"), table.get("quant_type_kwargs") or {}
    said = said.get("default", said) if isinstance(said, dict) else said
    skips = by_transformers(names(table, "modules_to_not_convert"))
    wide = not table.flag("include_input_output_embeddings", False)
    own, default = _torchao_types(table, said, settings)
    named = by_expression(own)
    finish(table, "quant_method", "untie_embedding_weights", "autoquant_kwargs")

    def stored(module: Module) -> str | None:
        entry = named(module)
        if entry is not None:
            return own[entry][0]
        outside = module.kind == "Embedding" or is_head(module)
        return None if (outside and wide) or skips(module) is not None else default[0]

    return Scheme(stored=stored, activations=next((a for _, a in (default, *own.values()) if a), None))


Pair = tuple[str | None, str | None]


def _torchao_types(table: Reader, said: Any, settings: Any) -> tuple[dict[str, Pair], Pair]:
    """The formats of modules that are named, and of all others."""
    if isinstance(said, str):
        return {}, _torchao(table, said, settings)
    kind, data = _saved(table, said)
    if kind not in ("ModuleFqnToConfig", "FqnToConfig"):
        return {}, _torchao(table, kind, data)
    entries = data.get("module_fqn_to_config") or data.get("fqn_to_config") or {}
    if not isinstance(entries, dict):
        raise refuse(table, "quant_type", f"its modules are {entries!r}, not a mapping")
    own: dict[str, Pair] = {}
    for name, config in entries.items():
        if name.startswith("re:"):
            expression(table, name[3:])
        own[name] = _torchao(table, *_saved(table, config)) if config is not None else (None, None)
    default = own.pop("_default", (None, None))
    return own, default


def _saved(table: Reader, value: Any) -> tuple[str, dict[str, Any]]:
    """The class and the settings of a config as torchao saves it."""
    kind, data = (value.get("_type"), value.get("_data") or {}) if isinstance(value, dict) else (None, {})
    if not isinstance(kind, str) or not isinstance(data, dict):
        raise refuse(table, f"quant_type = {value!r}", "it names no config of torchao")
    return kind, data


def _torchao(table: Reader, name: str, settings: Any) -> Pair:
    if not isinstance(settings, dict):
        raise refuse(table, "quant_type_kwargs", f"they are {settings!r}, not a mapping")
    inner = Reader(settings, table.name, f"{table.prefix}quant_type.")
    kind = _TORCHAO.get(name, name)
    size, rows = inner.get("group_size"), inner.get("granularity")
    finish(inner, *_TORCHAO_SETTINGS)
    if kind == "Int4WeightOnlyConfig":
        return known(inner, f"group_size = {size}", f"int4-g{size or 128}b"), None
    by_tensor = "PerTensor" in str(rows)
    if kind in ("Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig") and size in (None, -1):
        return "int8-channel", "int8" if "Dynamic" in kind else None
    if kind in ("Float8WeightOnlyConfig", "Float8DynamicActivationFloat8WeightConfig") and size is None:
        # A weight-only config has rows; the dynamic one has tensors unless it says rows (torchao's quant_api.py).
        row = kind.startswith("Float8Weight") or (rows is not None and not by_tensor)
        return "fp8-row" if row else "fp8", "fp8" if "Dynamic" in kind else None
    raise refuse(table, f"quant_type = {name!r}", f"only {', '.join(sorted(set(_TORCHAO.values())))} are known")


def quark(table: Reader) -> Scheme:
    """AMD Quark: one config for all, others for layers by shell patterns, and what is excluded."""
    overall = table.table("global_quant_config")
    default: Pair = _quark(overall) if overall is not None else (None, None)
    own: dict[str, Pair] = {}
    for pattern, inner in tables(table, "layer_quant_config").items():
        own[pattern] = _quark(inner)
    if table.get("layer_type_quant_config"):
        raise refuse(table, "layer_type_quant_config", "formats by class of layer are not known")
    excluded, named = by_glob(names(table, "exclude")), by_glob(own)
    export = table.table("export")
    kv = _quark_cache(table, export) if export is not None else None
    if overall is None and not own and kv is None:
        table.need("global_quant_config", "layer_quant_config")
    finish(
        table,
        *("quant_method", "quant_mode", "version", "algo_config", "softmax_quant_spec", "log_severity_level"),
        *("kv_cache_post_rope", "kv_cache_quant_config", "min_kv_scale", "export_mode"),
    )
    inputs = [a for _, a in (default, *own.values()) if a]

    def stored(module: Module) -> str | None:
        if module.kind != "Linear" or excluded(module) is not None:
            return None
        entry = named(module)
        return (own[entry] if entry is not None else default)[0]

    return Scheme(stored=stored, activations=inputs[0] if inputs else None, kv=kv)


def _quark_cache(table: Reader, export: Reader) -> str | None:
    """The cache is fp8 where its outputs are quantised (``kv_cache_group``)."""
    group = export.get("kv_cache_group")
    finish(export, "pack_method", "weight_format", "weight_merge_groups", "pack_format", "min_kv_scale")
    return "fp8" if group else None


def _quark(table: Reader) -> Pair:
    if isinstance(table.config.get("weight"), list):
        raise refuse(table, "weight", "weights that are quantised twice are not known")
    weights, inputs = table.table("weight"), table.table("input_tensors")
    table.get("output_tensors")  # of the projections that feed the cache
    finish(table, "bias", "target_device")
    if weights is None:
        return None, None
    return _quark_format(weights, True), _quark_format(inputs, False) if inputs is not None else None


_QUARK = (
    *("observer_cls", "is_dynamic", "round_method", "scale_type", "symmetric", "ch_axis", "mx_element_dtype"),
    *("scale_calculation_mode", "is_scale_quant", "zero_point_type", "mx_element_dtype"),
)


def _quark_format(table: Reader, weight: bool) -> str:
    kind, scheme, size = table.get("dtype"), table.get("qscheme"), table.get("group_size")
    scale, symmetric = table.get("scale_format"), table.get("symmetric")
    finish(table, *_QUARK)
    rows = "-channel" if weight and scheme == "per_channel" else ""
    if kind in ("fp8_e4m3", "int8") and scheme in ("per_tensor", "per_channel", "per_token"):
        return {"fp8_e4m3": "fp8", "int8": "int8"}[kind] + rows
    if kind == "fp4" and scheme == "per_group" and size == 32 and scale in (None, "e8m0"):
        return "mxfp4"
    if kind in ("int4", "uint4") and weight and scheme == "per_group":
        return known(
            table, f"group_size = {size}", f"int4-g{size}" if symmetric else "int4" if size == 128 else f"int4-g{size}z"
        )
    if kind == "int4" and weight and scheme == "per_channel" and symmetric:
        return "int4-channel"
    raise refuse(table, f"dtype = {kind!r}, qscheme = {scheme!r}, group_size = {size}", "its layout is not known")
