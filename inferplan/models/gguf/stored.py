"""The formats that a GGUF file stores, by role, and every tensor that differs from its role."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import Any

from inferplan.errors import SpecError
from inferplan.models.checkpoint import Checkpoint
from inferplan.models.gguf_header import WIDE_GGML_TYPES
from inferplan.models.huggingface.quantisation import exceptions
from inferplan.models.spec import ModelSpec
from inferplan.work.formats import FORMATS

_PLACE = re.compile(r"blk\.(?P<layer>\d+)\.(?P<name>[\w.]+?)\.weight")
_ATTENTION = {"attn_q": ["q"], "attn_k": ["k"], "attn_v": ["v"], "attn_output": ["o"], "attn_qkv": ["q", "k", "v"]}
_LATENT = {"attn_q_a": ["q_a"], "attn_q_b": ["q_b"], "attn_kv_a_mqa": ["kv_a"], "attn_kv_b": ["kv_b"]}
_LATENT |= {"attn_k_b": ["kv_b"], "attn_v_b": ["kv_b"], "indexer.attn_q_b": ["index.q"], "indexer.attn_k": ["index.k"]}
_LATENT |= {"indexer.proj": ["index.weights"]}
_STATE = {"ssm_in": ["in", "in.zxdt", "in.bc"], "ssm_out": ["out"], "ssm_x": ["x"], "ssm_dt": ["dt"]}
_DELTA = {"attn_qkv": ["in.qk"], "attn_gate": ["in.vz"], "ssm_in": ["in.qk", "in.vz"], "ssm_out": ["out"]}
_DELTA |= {name: ["in.ba"] for name in ("ssm_ba", "ssm_beta", "ssm_alpha")}
_FEED = {f"ffn_{name}": [name] for name in ("gate", "up", "down")}
_FEED |= {f"ffn_{name}_exps": [f"expert.{name}"] for name in ("gate", "up", "down")}
_FEED |= {f"ffn_{name}_shexp": [f"shared.{name}"] for name in ("gate", "up", "down")}
_FEED |= {"ffn_gate_up_exps": ["expert.gate", "expert.up"], "ffn_latent_down": ["latent.in"]}
_FEED |= {"ffn_latent_up": ["latent.out"], "ffn_gate_inp": ["router"]}
_TENSORS = _ATTENTION | _LATENT | _STATE | _FEED
_TABLES = {"token_embd.weight": "embedding", "output.weight": "head"}
_CLOSE = 0.002
"""A file whose bytes differ by more from those of its formats says so."""


def native_of(model: ModelSpec, checkpoint: Checkpoint) -> dict[str, Any]:
    """The format of each role, the one that most of its bytes are in, and every tensor of a layer that differs.

    Vectors and small tensors of the base role are fp32 in every file that llama.cpp converts, except those stored
    otherwise. Raises ``SpecError`` for a type that is not in ``inferplan/work/formats.py``.
    """
    of_layer = [{weight.name: weight.role for weight in model.layer_weights(layer)} for layer in model.sequence]
    roles: dict[str, Counter[str]] = defaultdict(Counter)
    stored: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    for tensor in checkpoint.tensors:
        fmt = WIDE_GGML_TYPES.get(tensor.dtype, tensor.dtype)
        if fmt not in FORMATS:
            raise SpecError(
                f"{checkpoint.path}: {tensor.name} is stored as {tensor.dtype}, which is not understood",
                hint="inferplan formats lists the types that are",
            )
        place = _PLACE.fullmatch(tensor.name)
        if tensor.name in _TABLES:
            roles[_TABLES[tensor.name]][fmt] += tensor.size
        if place is None or int(place["layer"]) >= len(of_layer) or len(tensor.shape) < 2:
            continue
        index = int(place["layer"])
        names = _DELTA if "in.ba" in of_layer[index] and place["name"] in _DELTA else _TENSORS
        for name in names.get(place["name"], []):
            role = of_layer[index].get(name)
            if role is not None:
                stored[role, name][index] = fmt
                roles[role][fmt] += tensor.size
    native: dict[str, Any] = {role: counts.most_common(1)[0][0] for role, counts in roles.items() if role != "base"}
    odd = exceptions({key: value for key, value in stored.items() if key[0] != "base"}, native)
    return native | {"base": "fp16", "exceptions": [*odd, *_wide(model, checkpoint, stored)]}


def _wide(
    model: ModelSpec, checkpoint: Checkpoint, stored: dict[tuple[str, str], dict[int, str]]
) -> list[dict[str, Any]]:
    """The tensors of the base role: those of the file in their format, the rest in that of its vectors."""
    vectors = {WIDE_GGML_TYPES.get(t.dtype, t.dtype) for t in checkpoint.tensors if len(t.shape) == 1}
    if vectors != {"fp32"}:
        return []
    listed = {name: set(formats.values()) for (role, name), formats in stored.items() if role == "base"}
    narrow = {name: formats.pop() for name, formats in listed.items() if formats and formats != {"fp32"}}
    vector = {weight.name for weight, _ in model.weights() if len(weight.shape) == 1}
    small = {weight.name for weight, _ in model.weights() if weight.role == "base"} - set(narrow) | vector
    return [
        *({"tensors": [name], "format": fmt} for name, fmt in narrow.items()),
        {"tensors": sorted(small), "format": "fp32"},
    ]


def size_note(model: ModelSpec, checkpoint: Checkpoint) -> list[str]:
    """What the file stores, and how far the formats of the model are from it."""
    said = f"the file stores {checkpoint.size:,} bytes"
    modules = [
        t.size for t in checkpoint.tensors if (p := _PLACE.fullmatch(t.name)) and int(p["layer"]) >= len(model.sequence)
    ]
    priced = model.checkpoint_bytes + sum(modules)
    off = priced / checkpoint.size - 1
    return [said if abs(off) <= _CLOSE else f"{said}; the formats read from it give {off:+.1%}"]
