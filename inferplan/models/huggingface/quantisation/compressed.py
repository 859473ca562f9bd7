"""compressed-tensors (llm-compressor): groups of targets, each with a format, and 2:4 sparsity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inferplan.models.huggingface.quantisation.rules import Module, Rule, by_expression
from inferplan.models.huggingface.quantisation.scheme import Scheme, finish, groups, known, names, refuse, tables
from inferplan.models.huggingface.reader import Reader

_FORMATS = (
    *("pack-quantized", "marlin-24", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision"),
    *("nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized", "dense"),
)
_PACKED = (None, "pack-quantized", "marlin-24", "mixed-precision")
_CLASSES = {"Linear": "Linear", "Embedding": "Embedding"}


@dataclass(frozen=True, kw_only=True)
class _Group:
    """One group: its targets by name and by class, and the formats of their weights and inputs."""

    by_name: Rule
    classes: frozenset[str]
    stored: str | None
    activations: str | None


def compressed(table: Reader) -> Scheme:
    """compressed-tensors. A target is a class of modules (``Linear``), a whole name, or an expression after ``re:``.

    vLLM's rules (``compressed_tensors/utils.py``): ``ignore`` wins, then a name, then a class. The head is linear.
    """
    table.only("format", *_FORMATS)
    layout, sparse = table.get("format"), _sparsity(table)
    found = [_group(group, layout, sparse) for group in tables(table, "config_groups").values()]
    if sparse and not found:
        found = [_Group(by_name=by_expression([]), classes=frozenset({"Linear"}), stored="bf16-24", activations=None)]
    if not found:
        raise refuse(table, "config_groups", "it names no targets")
    if table.get("transform_config"):
        raise refuse(table, "transform_config", "rotations could add matrices")
    ignored = by_expression(names(table, "ignore"))
    kv = cache(table)
    finish(table, "quantization_status", "global_compression_ratio", "version", "observer", "run_compressed")
    inputs = [group.activations for group in found if group.stored]

    def stored(module: Module) -> str | None:
        if ignored(module) is not None:
            return None
        for group in found:
            if group.by_name(module) is not None:
                return group.stored
        return next((group.stored for group in found if module.kind in group.classes), None)

    notes = ["inputs of quantised layers are in several formats; the first is priced"] if len(set(inputs)) > 1 else []
    return Scheme(stored=stored, activations=next((name for name in inputs if name), None), kv=kv, notes=notes)


def _group(table: Reader, layout: str | None, sparse: bool) -> _Group:
    targets = names(table, "targets") or ["Linear"]
    layout = table.get("format") or layout
    plain = [
        target for target in targets if not target.startswith("re:") and "." not in target and target[:1].isupper()
    ]
    for target in plain:
        if target not in _CLASSES:
            because = "a class that is no linear layer: loaders quantise nothing of it, or what is in it"
            raise refuse(table, f"targets = {target!r}", because, "name the linear layers: re:.*self_attn.*_proj")
    weights = table.table("weights")
    inputs = table.table("input_activations")
    if table.get("output_activations"):
        raise refuse(table, "output_activations", "quantised outputs are not priced")
    stored = _stored(weights, layout, sparse) if weights is not None and layout != "dense" else None
    activations = _inputs(inputs) if inputs is not None else None
    finish(table)
    rule = by_expression(target for target in targets if target not in plain)
    return _Group(by_name=rule, classes=frozenset(plain), stored=stored, activations=activations)


def _stored(weights: Reader, layout: str | None, sparse: bool) -> str:
    bits, kind = weights.get("num_bits"), weights.get("type") or "int"
    strategy, size = weights.get("strategy"), groups(weights.get("group_size"))
    block, symmetric = weights.get("block_structure"), weights.flag("symmetric", True)
    order = weights.get("actorder")
    weights.only("dynamic", False)
    weights.only("strategy", "tensor", "channel", "group", "block", "tensor_group")
    weights.only("actorder", "group", "weight", "static", "dynamic", False)
    finish(weights, "observer", "observer_kwargs", "scale_dtype", "zp_dtype")
    said = f"num_bits = {bits}, type = {kind!r}, group_size = {size}"
    if strategy == "channel" or (strategy is None and size is None and kind == "int"):
        end = "channel"
    else:
        end = f"g{size}" if size else ""
    if kind == "float":
        return _float(weights, said, (bits, size, strategy), block, sparse)
    if kind != "int" or (bits != 8 and (layout not in _PACKED or not end)) or strategy == "block":
        raise refuse(weights, f"{said}, strategy = {strategy!r}", f"its layout as {layout} is not known")
    if sparse or layout == "marlin-24":
        return known(weights, said, f"int{bits}-24" + (f"-{end}" if end else ""))
    if not symmetric:
        return known(weights, said, "int4" if (bits, size) == (4, 128) else f"int{bits}-{end}z")
    indexed = "-idx" if order == "group" and size else ""
    return known(weights, said, f"int{bits}" + (f"-{end}{indexed}" if end else ""))


def _float(weights: Reader, said: str, sizes: tuple[Any, ...], block: Any, sparse: bool) -> str:
    bits, size, strategy = sizes
    if bits == 8 and (block or strategy == "block"):
        if block not in (None, [128, 128], "128x128") or sparse:
            raise refuse(weights, f"block_structure = {block}", "only dense blocks of 128 x 128 are known")
        return "fp8-block"
    if bits == 8 and size in (None, 32):
        name = "mxfp8" if size else "fp8-channel" if strategy == "channel" else "fp8"
        return known(weights, said, name.replace("fp8", "fp8-24", 1) if sparse else name)
    if bits == 4 and size in (16, 32) and not sparse:
        return "nvfp4" if size == 16 else "mxfp4"
    raise refuse(weights, said, "no such format in inferplan/work/formats.py")


def _inputs(table: Reader) -> str | None:
    """The format of the inputs: an exponent's bits decide nothing, 16 bits are no format of their own."""
    bits, kind, size = table.get("num_bits"), table.get("type") or "int", groups(table.get("group_size"))
    finish(table, "strategy", "symmetric", "dynamic", "observer", "observer_kwargs", "block_structure", "actorder")
    if not isinstance(bits, int) or not isinstance(kind, str):
        raise refuse(table, f"num_bits = {bits!r}, type = {kind!r}", "no such inputs are known")
    known_inputs = {(8, "float"): "fp8", (8, "int"): "int8", (16, "float"): None, (16, "int"): None}
    if (bits, kind) in known_inputs:
        return "mxfp8" if (bits, kind, size) == (8, "float", 32) else known_inputs[bits, kind]
    if (bits, kind, size) in ((4, "float", 16), (4, "float", 32)):
        return "nvfp4" if size == 16 else "mxfp4"
    if (bits, kind) == (4, "int"):
        return "int4"
    raise refuse(table, f"num_bits = {bits}, type = {kind!r}, group_size = {size}", "no such inputs are known")


def _sparsity(table: Reader) -> bool:
    """Whether half of the weights are left out, two of every four."""
    sparsity = table.table("sparsity_config")
    if sparsity is None:
        return False
    layout, structure = sparsity.get("format"), sparsity.get("sparsity_structure")
    sparsity.only("format", "dense", "marlin_24", "marlin-24", "sparse-24-bitmask")
    targets, ignored = names(sparsity, "targets"), names(sparsity, "ignore")
    finish(sparsity, "registry_requires_subclass", "global_sparsity")
    if layout in (None, "dense"):
        return False
    if structure != "2:4" or targets not in ([], ["Linear"]) or set(ignored) - set(names(table, "ignore")):
        raise refuse(sparsity, "sparsity_structure", "only 2:4 over the quantised linear layers is known")
    return True


_CACHES = {"8 float": "fp8", "8 int": "int8", "4 float": "nvfp4", "FP8": "fp8", "INT8": "int8", "NVFP4": "nvfp4"}


def cache(table: Reader) -> str | None:
    """The format of the KV cache that a table names."""
    value = table.get("kv_cache_scheme") or table.get("kv_cache_quant_algo")
    if value is None:
        return None
    said = f"{value.get('num_bits')} {value.get('type')}" if isinstance(value, dict) else value
    if not isinstance(said, str) or said not in _CACHES:
        raise refuse(table, f"kv_cache_scheme = {value!r}", f"only {', '.join(_CACHES)} are known")
    return _CACHES[said]
