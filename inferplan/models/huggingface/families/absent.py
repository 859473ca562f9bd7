"""What the config classes of transformers 5.23 fill in by a rule, and what none of them builds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inferplan.models.huggingface.reader import LAYERS, Reader

UNCOUNTED: dict[str, dict[str, int]] = {
    "deepseek_v3": {"num_nextn_predict_layers": 1},
    "glm4_moe": {"num_nextn_predict_layers": 1},
}
"""Prediction modules, which no class of transformers builds: absence is none of them, and a note says so."""

WRITTEN: dict[str, dict[str, Callable[[int], list[Any]]]] = {
    "flint": {"mlp_only_layers": lambda layers: [0, 1]},
    "hy_v4": {"indexer_types": lambda layers: ["shared" if i and (i - 1) % 4 else "full" for i in range(layers)]},
    "laguna": {"mlp_layer_types": lambda layers: ["dense"] + ["sparse"] * (layers - 1)},
}
"""Lists that a class writes by its number of layers where the config leaves them out or says null."""


def absent(r: Reader) -> list[str]:
    """What the config leaves out, beside the fields of ``class_defaults``: notes of what is taken for it."""
    kind = str(r.get("model_type"))
    notes = [
        f"{name} is not in the config: none is counted, and its class says {said}"
        for name, said in UNCOUNTED.get(kind, {}).items()
        if name not in r.config
    ]
    for name, rule in WRITTEN.get(kind, {}).items():
        if r.config.get(name) is None:
            r.config[name] = rule(r.integer(*LAYERS))
            notes.append(f"{name} is not in the config: the rule of its class")
    return notes
