"""Decoders in the manner of GPT (2018 to 2022) whose configs have names or biases of their own."""

from __future__ import annotations

from typing import Any

from inferplan.models.huggingface.decoder import decoder
from inferplan.models.huggingface.dialect import Dialect
from inferplan.models.huggingface.gates_and_norms import walk
from inferplan.models.huggingface.reader import Reader


def persimmon(r: Reader, d: Dialect) -> dict[str, Any]:
    """Persimmon: layer norms on queries and keys, by ``qk_layernorm``."""
    fields = decoder(r, d)
    if not r.flag("qk_layernorm", True):
        for layer in walk(fields["layers"]):
            layer["mixer"] = layer["mixer"] | {"qk_norm": "none"}
    return fields
