"""Other valid configs of a type: its class's own, with one field changed or several."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

from transformers import PretrainedConfig

from tests.oracle.built import config_of

OWN = frozenset(vars(PretrainedConfig())) | frozenset(PretrainedConfig().to_dict())
"""What every config has: generation, the loader, labels."""
LEFT = re.compile(
    r".*(_token|_token_id|_token_ids|_token_index|_ids|_eps|_epsilon|_range|_std|dropout|_prob|_coef|_id)|rope_.*|use_cache"
    r"|image_size|audio_length|is_decoder|is_encoder_decoder|.*seed.*"
)
"""Fields that say nothing of shapes, or that need an input to be read."""
LAYERS = re.compile(r"(num_(hidden_)?|n_)layers?|.*_layers|depth|layers")
OPTIONAL = {
    "head_dim": (16, 32, 48, 64, 128),
    "num_key_value_heads": (1, 2, 4, 8),
    "sliding_window": (16, 24),
    "q_lora_rank": (24, 96),
    "intermediate_size": (96, 512),
    "n_inner": (96, 512),
    "shared_expert_intermediate_size": (64, 96),
    "n_shared_experts": (1, 2),
}
"""Values tried where the class's own is ``None``."""
WINDOWS = re.compile(r".*(window|chunk_size|local_attention).*")


def variations(name: str, number: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Fields to build a type with, drawn without end: most of few layers, so that they are built in no time."""
    own = config_of(name)
    while True:
        yield _several(own, rng, 1 if rng.random() < 0.4 else rng.randint(2, 5))


def _several(config: Any, rng: random.Random, number: int) -> dict[str, Any]:
    """``number`` fields of a config or of the configs in it with other values."""
    nested = [key for key in getattr(config, "sub_configs", {}) if getattr(config, key, None) is not None]
    fields = _small(config, rng)
    for key in nested:
        inner = getattr(config, key)
        if isinstance(inner, PretrainedConfig):
            fields[key] = {"model_type": inner.model_type} | _small(inner, rng)
    for _ in range(number):
        key = rng.choice([*nested, None]) if nested else None
        inner = config if key is None else getattr(config, key)
        if isinstance(inner, PretrainedConfig):
            (fields if key is None else fields[key]).update(_one(inner, rng))
    return fields


def _small(config: Any, rng: random.Random) -> dict[str, Any]:
    """Fewer layers and short windows, four times of five."""
    if rng.random() < 0.2:
        return {}
    fields = {}
    for key, value in _own(config).items():
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        if re.fullmatch(r"(num_(hidden_)?|n_)layers?|depth|layers|(encoder|decoder)_layers", key) and value > 6:
            fields[key] = rng.randint(2, 6)
        if WINDOWS.fullmatch(key) and value > 32:
            fields[key] = rng.choice((16, 32))
    return fields


def _own(config: Any) -> dict[str, Any]:
    """The fields of the class itself that a variation may touch."""
    fields = {key: value for key, value in vars(config).items() if key not in OWN and not key.startswith("_")}
    fields["tie_word_embeddings"] = getattr(config, "tie_word_embeddings", None)
    return {key: value for key, value in fields.items() if not LEFT.fullmatch(key)}


def _one(config: Any, rng: random.Random) -> dict[str, Any]:
    """One field with another value."""
    fields = {
        k: v
        for k, v in _own(config).items()
        if isinstance(v, int) or (v is None and k in OPTIONAL) or k == "layer_types"
    }
    if not fields:
        return {}
    key = rng.choice(sorted(fields))
    value = fields[key]
    if key == "layer_types":
        kinds = sorted(set(value or ["full_attention"]))
        length = rng.randint(len(kinds), 6)
        return {"num_hidden_layers": length, key: [rng.choice(kinds) for _ in range(length)]}
    if value is None:
        return {key: rng.choice(OPTIONAL[key])} if key in OPTIONAL else {}
    return {key: _other(key, value, rng)}


def _other(key: str, value: Any, rng: random.Random) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if LAYERS.fullmatch(key):
        return rng.randint(1, 6)
    if WINDOWS.fullmatch(key):
        return rng.choice((16, 24, 32))
    steps = [value * 2, max(1, value // 2), value + 1, value + 8, max(0, value - 1), max(1, value // 4)]
    return rng.choice(steps)
