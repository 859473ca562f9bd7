"""Quantisation configs: which tensors of a checkpoint are stored in which format.

Each weight of the model is looked up under the names that vendors give its module, exclusion patterns are applied as
the loaders apply them, and the result is summed up as one format a role and the exceptions.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from inferplan.errors import SpecError
from inferplan.models.spec import ModelSpec

_ATTENTION = ("self_attn", "attn", "mixer", "attention")
_EXPERTS = ("mlp.experts", "mlp.experts.0", "block_sparse_moe.experts.0", "mixer.experts.0", "feed_forward.experts")
_SHARED = ("mlp.shared_experts", "mlp.shared_expert", "mixer.shared_experts", "block_sparse_moe.shared_experts")
_MLP = ("mlp", "mixer", "feed_forward")
# Our tensor: the parents and the last parts of the names of its module in checkpoints.
_MODULES: dict[str, list[tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "q": [(_ATTENTION, ("q_proj", "qkv_proj"))],
    "k": [(_ATTENTION, ("k_proj", "qkv_proj"))],
    "v": [(_ATTENTION, ("v_proj", "qkv_proj"))],
    "o": [(_ATTENTION, ("o_proj",))],
    "q_a": [(_ATTENTION, ("q_a_proj",))],
    "q_b": [(_ATTENTION, ("q_b_proj",))],
    "kv_a": [(_ATTENTION, ("kv_a_proj_with_mqa",))],
    "kv_b": [(_ATTENTION, ("kv_b_proj",))],
    "index.q": [(("self_attn.indexer",), ("wq_b",))],
    "index.k": [(("self_attn.indexer",), ("wk",))],
    "qkv": [(_ATTENTION, ("qkv_proj",))],
    "in.qk": [(("linear_attn",), ("in_proj_qkv", "in_proj_qkvz"))],
    "in.vz": [(("linear_attn",), ("in_proj_z", "in_proj_qkvz"))],
    "in.ba": [(("linear_attn",), ("in_proj_ba", "in_proj_b"))],
    "out": [(("linear_attn", "mixer", "mamba"), ("out_proj",))],
    "in": [(("mixer", "mamba"), ("in_proj",))],
    "in.zxdt": [(("mixer", "mamba"), ("in_proj",))],
    "in.bc": [(("mixer", "mamba"), ("in_proj",))],
    "x": [(("mixer", "mamba"), ("x_proj",))],
    "dt": [(("mixer", "mamba"), ("dt_proj",))],
    "gate": [(_MLP, ("gate_proj", "gate_up_proj"))],
    "up": [(_MLP, ("up_proj", "gate_up_proj"))],
    "down": [(_MLP, ("down_proj",))],
    "expert.gate": [(_EXPERTS, ("gate_proj", "gate_up_proj", "w1"))],
    "expert.up": [(_EXPERTS, ("up_proj", "gate_up_proj", "w3"))],
    "expert.down": [(_EXPERTS, ("down_proj", "w2"))],
    "shared.gate": [(_SHARED, ("gate_proj", "gate_up_proj"))],
    "shared.up": [(_SHARED, ("up_proj", "gate_up_proj"))],
    "shared.down": [(_SHARED, ("down_proj",))],
    "latent.in": [(("mixer",), ("fc1_latent_proj",))],
    "latent.out": [(("mixer",), ("fc2_latent_proj",))],
}
_ROOT = re.compile(r"^(model\.language_model\.|language_model\.model\.|model\.|backbone\.)")
_PLACE = re.compile(r"layers\.(\d+)\.")


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """What a quantisation config says. default: the format of linear layers; named: patterns with their own format."""

    default: str | None = None
    activations: str | None = None
    kv: str | None = None
    experts_only: bool = False
    excluded: list[str] = field(default_factory=list)
    named: dict[str, str] = field(default_factory=dict)


def matches(pattern: str, module: str) -> bool:
    """Whether a pattern means a module: ``re:`` is an expression, ``*`` a wildcard, else itself or what is in it."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None or re.match(pattern[3:], f"model.{module}") is not None
    if "*" in pattern:
        return fnmatchcase(module, pattern) or fnmatchcase(module, f"{pattern}.*")
    return module == pattern or module.startswith(f"{pattern}.") or module.endswith(f".{pattern}")


def read_scheme(config: dict[str, Any], name: str) -> Scheme:
    """The scheme of a ``quantization_config``, or of the ``quantization`` table of ``hf_quant_config.json``."""
    config = config.get("quantization", config)
    method = config.get("quant_method")
    if config.get("quant_algo") or config.get("config_groups") or method in ("modelopt", "compressed-tensors"):
        return _modelopt(config, name) if config.get("quant_algo") else _compressed(config, name)
    excluded = config.get("modules_to_not_convert") or config.get("ignored_layers") or []
    if method in ("fp8", "fbgemm_fp8"):
        block = config.get("weight_block_size")
        if block not in (None, [128, 128]):
            raise _refuse(name, f"weight_block_size = {block}", "only [128, 128] is known")
        return Scheme(default="fp8-block" if block else "fp8", activations="fp8", excluded=["lm_head", *excluded])
    if method == "mxfp4":
        return Scheme(default="mxfp4", experts_only=True, excluded=excluded)
    if method in ("gptq", "awq"):
        bits, group = config.get("bits", config.get("w_bit")), config.get("group_size", config.get("q_group_size"))
        stored = _integer(name, bits, group, zero=True)
        stored = "int4-gptq" if method == "gptq" and stored == "int4" else stored
        return Scheme(default=stored, excluded=["lm_head", *excluded])
    if method == "bitsandbytes":
        skipped = config.get("llm_int8_skip_modules") or ["lm_head"]
        if config.get("load_in_8bit"):
            return Scheme(default="int8", excluded=skipped)
        kind = config.get("bnb_4bit_quant_type", "fp4")
        if kind not in ("fp4", "nf4"):
            raise _refuse(name, f"bnb_4bit_quant_type = {kind!r}", "only fp4 and nf4 are known")
        nested = kind == "nf4" and config.get("bnb_4bit_use_double_quant", False)
        return Scheme(default="nf4-dq" if nested else kind, excluded=skipped)
    raise _refuse(name, f"quant_method = {method!r}", "its layout is not known")


def _refuse(name: str, field_name: str, because: str) -> SpecError:
    return SpecError(f"{name}: quantization_config.{field_name} is not understood", because=because)


def _integer(name: str, bits: Any, group: Any, zero: bool) -> str:
    if bits == 8 and group in (-1, None):
        return "int8"
    if bits == 4 and group in (32, 64, 128):
        return {128: "int4", 64: "int4-g64z", 32: "int4-g32z"}[group] if zero else f"int4-g{group}"
    if bits == 4 and group in (-1, None):
        return "int4-channel"
    raise _refuse(name, f"bits = {bits}, group_size = {group}", "no such format in inferplan/work/formats.py")


_ALGORITHMS = {
    "FP8": ("fp8", "fp8"),
    "FP8_PER_CHANNEL_PER_TOKEN": ("fp8", "fp8"),
    "FP8_PB_WO": ("fp8-block", "fp8"),
    "NVFP4": ("nvfp4", "nvfp4"),
    "W4A16_NVFP4": ("nvfp4", None),
    "NVFP4_AWQ": ("nvfp4", "nvfp4"),
    "W4A16_AWQ": ("int4-g128", None),
    "MXFP8": ("mxfp8", "mxfp8"),
    "MXFP4": ("mxfp4", "mxfp4"),
    "INT8_SQ": ("int8", "int8"),
}


def _algorithm(name: str, value: Any) -> tuple[str, str | None]:
    if value not in _ALGORITHMS:
        raise _refuse(name, f"quant_algo = {value!r}", f"only {', '.join(_ALGORITHMS)} are known")
    return _ALGORITHMS[value]


def _cache(config: dict[str, Any], name: str) -> str | None:
    value = config.get("kv_cache_quant_algo") or config.get("kv_cache_scheme")
    if isinstance(value, dict):
        value = {"8 float": "FP8", "8 int": "INT8", "4 float": "NVFP4"}.get(
            f"{value.get('num_bits')} {value.get('type')}", value
        )
    if value is None:
        return None
    known = {"FP8": "fp8", "INT8": "int8", "NVFP4": "nvfp4"}
    if not isinstance(value, str) or value not in known:
        raise _refuse(name, f"kv_cache_scheme = {value!r}", f"only {', '.join(known)} are known")
    return known[value]


def _modelopt(config: dict[str, Any], name: str) -> Scheme:
    """TensorRT Model Optimizer: one algorithm, or ``MIXED_PRECISION`` with one for each layer."""
    kv = _cache(config, name)
    excluded = config.get("exclude_modules") or config.get("ignore") or []
    if config["quant_algo"] != "MIXED_PRECISION":
        default, activations = _algorithm(name, config["quant_algo"])
        return Scheme(default=default, activations=activations, kv=kv, excluded=["lm_head", *excluded])
    layers = config.get("quantized_layers")
    if not isinstance(layers, dict):
        raise _refuse(name, "quant_algo = 'MIXED_PRECISION'", "quantized_layers is absent")
    found = {key: _algorithm(name, value.get("quant_algo")) for key, value in layers.items()}
    common = Counter(activations for _, activations in found.values()).most_common(1)[0][0]
    return Scheme(
        activations=common, kv=kv, excluded=list(excluded), named={key: pair[0] for key, pair in found.items()}
    )


def _compressed(config: dict[str, Any], name: str) -> Scheme:
    """compressed-tensors: groups of targets, each with a format."""
    default, activations, named = None, None, {}
    for group in (config.get("config_groups") or {}).values():
        weights, inputs = group.get("weights") or {}, group.get("input_activations")
        stored = _group_format(weights, name)
        if inputs:
            activations = _group_format(inputs | {"strategy": None}, name)
        for target in group.get("targets") or ["Linear"]:
            if target == "Linear":
                default = stored
            else:
                named[target] = stored
    if default is None and not named:
        raise _refuse(name, "config_groups", "it names no targets")
    ignored = config.get("ignore") or []
    return Scheme(default=default, activations=activations, kv=_cache(config, name), excluded=ignored, named=named)


def _group_format(weights: dict[str, Any], name: str) -> str:
    bits, kind, group = weights.get("num_bits"), weights.get("type"), weights.get("group_size")
    if kind == "float" and bits == 8:
        return "fp8-block" if weights.get("block_structure") or weights.get("strategy") == "block" else "fp8"
    if kind == "float" and bits == 4 and group in (16, 32):
        return "nvfp4" if group == 16 else "mxfp4"
    if kind == "int" and (bits, group) == (8, None):
        return "int8"
    return _integer(name, bits, group, not weights.get("symmetric", True))


class _Patterns:
    """Patterns of one scheme, sorted by the layer that they name; the others are tried for every layer."""

    def __init__(self, scheme: Scheme) -> None:
        self.default = scheme.default
        self.by_layer: dict[int, list[tuple[str, str | None]]] = defaultdict(list)
        self.everywhere: list[tuple[str, str | None]] = []
        for pattern, name in [*((p, None) for p in scheme.excluded), *scheme.named.items()]:
            short = pattern if pattern.startswith("re:") else _ROOT.sub("", pattern)
            place = _PLACE.match(short)
            (self.by_layer[int(place[1])] if place else self.everywhere).append((short, name))

    def stored(self, tensor: str, layer: int) -> str | None:
        """The format of a tensor; ``None`` when it is not quantised."""
        modules = _modules(tensor, layer)
        for pattern, name in [*self.everywhere, *self.by_layer[layer]]:
            if any(matches(pattern, module) for module in modules):
                return name
        return self.default


def _modules(tensor: str, layer: int) -> list[str]:
    """Every name that a checkpoint may give the module of a tensor, without the root of the model."""
    return [
        f"layers.{layer}.{parent}.{leaf}"
        for parents, leaves in _MODULES.get(tensor, [])
        for parent in parents
        for leaf in leaves
    ]


def apply(scheme: Scheme, model: ModelSpec) -> dict[str, Any]:
    """The ``native`` table of a model: a format for each role, and the tensors that differ from it."""
    elements: dict[str, Counter[str]] = defaultdict(Counter)
    stored: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    base, patterns = model.native.base, _Patterns(scheme)
    for index, layer in enumerate(model.sequence):
        for weight in layer.weights(model.d_model, model.norm):
            if weight.role not in ("weights", "experts") or layer.shared:
                continue
            quantised = not scheme.experts_only or weight.role == "experts"
            found = patterns.stored(weight.name, index) if quantised else None
            elements[weight.role][found or base] += weight.elements
            stored[weight.role, weight.name][index] = found or base
    native: dict[str, Any] = {"base": base, "activations": scheme.activations, "kv": scheme.kv}
    for role, counts in elements.items():
        native[role] = counts.most_common(1)[0][0]
    if native.get("weights") == base and native.get("experts") in (None, base):
        native["activations"] = None
    head = _head(scheme)
    if head and not model.tied:
        native["head"] = head
    native["exceptions"] = exceptions(stored, native)
    return {key: value for key, value in native.items() if value is not None and (value != base or key == "experts")}


def _head(scheme: Scheme) -> str | None:
    if any(matches(pattern, module) for pattern in scheme.excluded for module in ("lm_head", "language_model.lm_head")):
        return None
    return scheme.named.get("lm_head")


def exceptions(stored: dict[tuple[str, str], dict[int, str]], native: dict[str, Any]) -> list[dict[str, Any]]:
    """Tensors whose format is not their role's, those with the same layers and format together."""
    groups: dict[tuple[str, tuple[int, ...]], list[str]] = defaultdict(list)
    for (role, tensor), by_layer in stored.items():
        odd: dict[str, list[int]] = defaultdict(list)
        for index, name in by_layer.items():
            if name != native[role]:
                odd[name].append(index)
        for name, layers in odd.items():
            groups[name, () if len(layers) == len(by_layer) else tuple(layers)].append(tensor)
    return [
        {"tensors": tensors, "format": name, **({"layers": list(layers)} if layers else {})}
        for (name, layers), tensors in groups.items()
    ]
