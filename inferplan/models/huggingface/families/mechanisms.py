"""Families with mechanisms of their own: compressed entries, hyper-connections, chosen blocks."""

from __future__ import annotations

from inferplan.models.huggingface import mechanisms
from inferplan.models.huggingface.dialect import Dialect

FAMILIES: dict[str, Dialect] = {
    "deepseek_v4": Dialect(build=mechanisms.deepseek_v4, fixed={"attention_bias": (False,), "mlp_bias": (False,)}),
    "mistral_large4_text": Dialect(build=mechanisms.mistral_large4, fixed={"attention_bias": (False,)}),
    "rwkv7": Dialect(build=mechanisms.rwkv7, norm="layer", embedding_norm=True),
    "minimax_m3_vl_text": Dialect(build=mechanisms.minimax_m3, qk_norm=("head", True), head_dim=True),
}

ALIASES = {
    "deepseek_ref": "deepseek_v4",
    "minimax_m3": "minimax_m3_vl_text",
    "mistral_large4": "mistral_large4_text",
    "minimax_m3_vl": "minimax_m3_vl_text",
}
"""Other names of a row."""
