"""What the config classes of transformers 5.23 fill in by a rule, and what none of them builds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inferplan.models.huggingface.reader import HEADS, LAYERS, WIDTH, Reader
from inferplan.models.provenance import ASSUMED

UNCOUNTED: dict[str, dict[str, int]] = {
    "deepseek_v3": {"num_nextn_predict_layers": 1},
    "glm4_moe": {"num_nextn_predict_layers": 1},
}
"""Prediction modules, which no class of transformers builds: absence is none of them, and a note says so."""


def _heads(r: Reader) -> int:
    return r.integer(*HEADS)


def _state_head(r: Reader) -> int:
    return r.integer("mamba_expand") * r.integer(*WIDTH) // r.integer("mamba_n_heads")


def _inner_head(r: Reader) -> int:
    inner = r.optional("mamba_d_ssm")
    return _state_head(r) if inner is None else inner // r.integer("mamba_n_heads")


def _linear_key(r: Reader) -> int:
    return int(0.75 * r.integer(*WIDTH) / r.integer("linear_num_key_heads"))


WRITTEN: dict[str, dict[str, Callable[[Reader], Any]]] = {
    "bamba": {"mamba_d_head": _state_head},
    "cohere2": {"num_key_value_heads": _heads},
    "falcon_h1": {"mamba_d_head": _inner_head},
    "flint": {"mlp_only_layers": lambda r: [0, 1]},
    "granitemoehybrid": {"num_key_value_heads": _heads, "mamba_d_head": _state_head},
    "hy_v4": {
        "indexer_types": lambda r: ["shared" if i and (i - 1) % 4 else "full" for i in range(r.integer(*LAYERS))]
    },
    "laguna": {"mlp_layer_types": lambda r: ["dense"] + ["sparse"] * (r.integer(*LAYERS) - 1)},
    "minicpm3": {"v_head_dim": lambda r: r.integer(*WIDTH) // r.integer(*HEADS)},
    "olmo_hybrid": {
        "linear_num_key_heads": _heads,
        "linear_num_value_heads": _heads,
        "linear_key_head_dim": _linear_key,
        "linear_value_head_dim": lambda r: 2 * r.integer("linear_key_head_dim"),
    },
    "zamba2": {"intermediate_size": lambda r: 4 * r.integer(*WIDTH), "num_key_value_heads": _heads},
}
"""What a class computes from other fields where the config leaves a field out, says null or ``auto``."""


def absent(r: Reader) -> list[str]:
    """What the config leaves out, beside the fields of ``class_defaults``: notes of what is taken for it."""
    kind = str(r.get("model_type"))
    notes = [
        f"{name} is not in the config: none is counted, and its class says {said}"
        for name, said in UNCOUNTED.get(kind, {}).items()
        if name not in r.config
    ]
    for name, rule in WRITTEN.get(kind, {}).items():
        if r.config.get(name) in (None, "auto"):
            r.config[name] = rule(r)
            notes.append(f"{ASSUMED}{name} = {r.config[name]}: not in the config, the rule of its class")
    return notes
