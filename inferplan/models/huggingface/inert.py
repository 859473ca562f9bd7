"""Fields of released configs that change no tensor, no cache and no time, by the ``model_type`` of their table.

Three kinds of fields do not matter: what any config holds beside its shapes (``UNIMPORTANT`` of the reader), what the
class of a family has and its counts do not depend on (``ignored`` of its row), and what files have beyond their class:
that is here.
"""

from __future__ import annotations

_PLACES = "how many places of a prompt an image takes, which the preprocessor decides"

INERT: dict[str, dict[str, str]] = {
    "": {"internal_version": "the number of a release (ALLaM)"},
    "gemma4_vision": {"image_seq_length": _PLACES, "video_seq_length": _PLACES},
    "minimax_m2": {
        "mlp_intermediate_size": "the width of dense layers, of which there are none: every layer has experts "
        "(transformers' modeling_minimax_m2.py, vLLM's minimax_m2.py read intermediate_size alone)",
        "shared_moe_mode": "of a shared expert, of which shared_intermediate_size = 0 says there is none",
    },
    "step3p5": {
        "moe_router_activation": "of the scores of experts",
        "need_fp32_gate": "the type in which the scores are computed",
        "norm_expert_weight": "of the scores of experts",
        "partial_rotary_factors": "of positions, which have no parameters",
        "scoring_func": "of the scores of experts",
        "use_head_wise_attn_gate": "the class has the gate whatever it says",
        "use_moe": "which layers have experts is said layer by layer",
        "use_moe_router_bias": "the bias is a buffer",
        "use_rope_layers": "of positions, which have no parameters",
        "yarn_only_types": "of positions, which have no parameters",
    },
}
"""The fields of each type, ``""`` for all of them, with the reason."""


def inert(kind: object) -> set[str]:
    """The fields of a table that do not matter, by what it says of its type."""
    return {*INERT[""], *INERT.get(str(kind), {})}
