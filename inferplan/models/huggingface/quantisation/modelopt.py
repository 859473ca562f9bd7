"""NVIDIA Model Optimizer: ``hf_quant_config.json``, or the same inside a config."""

from __future__ import annotations

from collections import Counter
from typing import Any

from inferplan.models.huggingface.quantisation.compressed import cache, compressed
from inferplan.models.huggingface.quantisation.floats import fp8
from inferplan.models.huggingface.quantisation.rules import Module, Rule, by_path, by_substring, by_wildcard
from inferplan.models.huggingface.quantisation.scheme import Decision, Scheme, finish, is_head, names, refuse, tables
from inferplan.models.huggingface.reader import Reader

ALGORITHMS: dict[str, tuple[str, str | None]] = {
    "FP8": ("fp8", "fp8"),
    "FP8_PER_CHANNEL_PER_TOKEN": ("fp8-row", "fp8"),
    "FP8_PB_WO": ("fp8-block", "fp8"),
    "FP8_PB_REAL": ("fp8-block", "fp8"),
    "NVFP4": ("nvfp4", "nvfp4"),
    "W4A16_NVFP4": ("nvfp4", None),
    "W4A8_NVFP4_FP8": ("nvfp4", "fp8"),
    "NVFP4_AWQ": ("nvfp4", "nvfp4"),
    "W4A16_AWQ": ("int4-g128", None),
    "W4A8_AWQ": ("int4-g128", "fp8"),
    "MXFP8": ("mxfp8", "mxfp8"),
    "MXFP4": ("mxfp4", "mxfp4"),
    "W4A8_MXFP4_FP8": ("mxfp4", "fp8"),
    "W8A16": ("int8-channel", None),
    "W4A16": ("int4-channel", None),
    "INT8_SQ": ("int8-channel", "int8"),
}
"""An algorithm: the formats of weights and of inputs (``modelopt/torch/export/model_config.py``)."""
_GROUPS = {"nvfp4": (16,), "int4-g128": (128,), "mxfp4": (32,), "mxfp8": (32,)}
_UNIMPORTANT = ("producer", "quant_method", "has_zero_point", "pre_quant_scale", "smoothquant_val", "version")


def modelopt(table: Reader) -> Scheme:
    """One algorithm for all linear layers but the excluded ones and the head, or ``MIXED_PRECISION`` by layer.

    Excluded are shell patterns of names, or whole parts of them; vLLM also takes an entry anywhere inside a name.
    """
    inner = table.table("quantization")
    if inner is not None:
        finish(table, *_UNIMPORTANT)
        table = inner
    algorithm = table.get("quant_algo")
    if algorithm is None and table.config.get("config_groups"):
        table.skip(*_UNIMPORTANT)
        return compressed(table)
    kv = cache(table)
    if "quant_algo" not in table.config and kv is None:
        table.need("quant_algo")
    excluded = names(table, "exclude_modules", "ignore", "ignored_layers", "modules_to_not_convert")
    layers = tables(table, "quantized_layers")
    size = table.get("group_size")
    before = _blocks(table)
    finish(table, *_UNIMPORTANT, "config_groups")  # the groups repeat what the algorithm says
    if algorithm is None:
        return Scheme(stored=lambda module: None, kv=kv)
    skipped, literal = by_wildcard(excluded), by_substring(p for p in excluded if "*" not in p)
    if str(algorithm).upper() == "MIXED_PRECISION":
        return _mixed(table, layers, (skipped, before), kv)
    if before is not None:
        raise refuse(table, "weight_block_size", "beside one algorithm for all layers")
    default, activations = _algorithm(table, algorithm, size)

    def stored(module: Module) -> str | None:
        if module.kind != "Linear" or is_head(module):
            return None
        return None if skipped(module) is not None else default

    def loaded(module: Module) -> str | None:
        return None if literal(module) is not None else stored(module)

    return Scheme(stored=stored, elsewhere=loaded, loaders=("ModelOpt", "vLLM"), activations=activations, kv=kv)


_BLOCKS = ("weight_block_size", "fmt", "activation_scheme", "scale_fmt")


def _blocks(table: Reader) -> Decision | None:
    """What layers are stored in that no list names, where the table also says how the checkpoint was before it: fp8 by
    blocks (``nvidia/DeepSeek-V4-Pro-NVFP4``, whose experts alone are NVFP4)."""
    table.skip(*_BLOCKS)
    if table.get("weight_block_size") is None:
        return None
    table.only("moe_quant_algo", "NVFP4")
    own = {name: table.config[name] for name in _BLOCKS if name in table.config}
    return fp8(Reader({"quant_method": "fp8", **own}, table.name, table.prefix)).stored


def _mixed(table: Reader, layers: dict[str, Reader], rules: tuple[Rule, Decision | None], kv: str | None) -> Scheme:
    """Each named layer has its own algorithm; what nobody names stays wide, or as it was before.

    rules: which layers are excluded, and what they were stored in before.
    """
    skipped, before = rules
    if not layers:
        raise refuse(table, "quant_algo = 'MIXED_PRECISION'", "quantized_layers is absent")
    found: dict[str, tuple[str, str | None]] = {}
    for name, inner in layers.items():
        found[name] = _algorithm(inner, inner.get("quant_algo"), inner.get("group_size", "awq_block_size"))
        finish(inner, *_UNIMPORTANT)
    named = by_path(found)
    common = Counter(activations for _, activations in found.values()).most_common(1)[0][0]
    several = len({activations for _, activations in found.values()}) > 1 or before is not None
    notes = ["inputs of quantised layers are in several formats; the most common is priced"] if several else []

    def stored(module: Module) -> str | None:
        entry = named(module) if skipped(module) is None else None
        if entry is not None:
            return found[entry][0]
        return before(module) if before is not None else None

    return Scheme(stored=stored, activations=common, kv=kv, notes=notes)


def _algorithm(table: Reader, value: Any, size: Any) -> tuple[str, str | None]:
    pair = ALGORITHMS.get(str(value).upper())
    if pair is None:
        raise refuse(table, f"quant_algo = {value!r}", f"only {', '.join(ALGORITHMS)} are known")
    if size not in (None, 0) and size not in _GROUPS.get(pair[0], (size,)):
        raise refuse(table, f"group_size = {size}", f"{value} has groups of {_GROUPS[pair[0]][0]}")
    return pair
