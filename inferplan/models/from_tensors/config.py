"""What a config of a family that nobody has described says all the same: fields that mean one thing in every family."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from inferplan.models.from_tensors.layer import Said
from inferplan.models.huggingface.reader import CONTEXT, DTYPES, HEAD_DIM, HEADS, KV_HEADS, LAYERS, TOP_K, WIDTH, Reader

_GENERATES = re.compile(r".*(CausalLM|ConditionalGeneration|HeadModel)\w*")
"""Classes of transformers whose models decode."""
_KEPT = re.compile(
    r"(.*[_.])?(kv|cla|share\w*_kv|cache|sliding|swa|window|chunk|local|sparse|compress\w*|stride|index\w*|cross|hybrid"
    r"|recurrent|recurrence|ssm|mamba|linear|lightning|layer_types?|block_types?|types|pattern|memory)([_.].*)?"
)
"""Fields that could change what a layer keeps, whatever they mean in their family."""
_FEED_FORWARD = re.compile(r"(mlp|moe|ffn|dense|expert|prefix_dense)\w*|first_k_dense_replace|decoder_sparse_step")
"""Fields of feed-forwards, which keep nothing."""
_LATENT = ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "qk_head_dim")
_FULL, _SLIDING = "full_attention", "sliding_attention"


class Config:
    """The fields of a ``config.json``, of the part of it that describes the language model."""

    def __init__(self, fields: dict[str, Any], name: str) -> None:
        nested = (fields.get(key) for key in ("text_config", "llm_config"))
        inner: dict[str, Any] = next((table for table in nested if isinstance(table, dict)), {})
        self.outer, self.reader = Reader(fields, name), Reader({**fields, **inner}, name)
        self.given = bool(fields)

    @property
    def layers(self) -> int | None:
        return self.reader.optional(*LAYERS)

    @property
    def modules(self) -> int:
        """Prediction modules behind the layers."""
        return self.reader.optional("num_nextn_predict_layers") or 0

    @property
    def width(self) -> int | None:
        return self.reader.optional(*WIDTH)

    @property
    def context(self) -> int | None:
        return self.reader.optional(*CONTEXT)

    def contradicted(self, told: Mapping[tuple[str, ...], Collection[int]]) -> list[str]:
        """In words, the fields whose value is none of those that tensors tell, with both. told: by a field's names."""
        return [
            f"{name} is {' or '.join(map(str, sorted(values)))}, not {self.reader.config[name]}"
            for names, values in told.items()
            for name in names
            if values and isinstance(self.reader.config.get(name), int) and self.reader.config[name] not in values
        ]

    @property
    def base(self) -> str | None:
        """The format of activations, where it says one."""
        return DTYPES.get(str(self.reader.get("torch_dtype", "dtype")))

    def said(self, layers: int, width: int) -> Said:
        """What it says of so many layers. Raises ``SpecError`` for a field that holds no number."""
        reader = self.reader
        windows, unkept = self._windows(layers)
        found = Said(
            width=width,
            heads=reader.optional(*HEADS),
            head_dim=reader.optional(HEAD_DIM[0]),
            top_k=reader.optional(*TOP_K),
            windows=windows,
        )
        for names in (KV_HEADS, _LATENT, ("vocab_size", "num_experts", "num_local_experts", "n_routed_experts")):
            reader.read.update(names)
        odd = [name for name in reader.unread() if _KEPT.fullmatch(name) and not _FEED_FORWARD.fullmatch(name)]
        said = [str(name) for name in self.outer.get("architectures") or []]
        if said and not any(_GENERATES.fullmatch(name) for name in said):
            unkept = f"nothing says that it generates: its architectures are {', '.join(said)}"
        elif not unkept and odd:
            unkept = f"its config has {', '.join(odd[:3])}, which may change what a layer keeps"
        return Said(**{**found.__dict__, "unkept": unkept})

    def _windows(self, layers: int) -> tuple[tuple[int | None, ...], str]:
        """The window of each layer, or why it is not known."""
        reader = self.reader
        size, used = reader.optional("sliding_window"), reader.get("use_sliding_window")
        reader.read.update(("max_window_layers", "sliding_window_pattern"))
        kinds = reader.get("layer_types")
        if kinds is None:
            if size is None or used is False:
                return (), ""
            return (), f"its config has sliding_window = {size}, and no layer_types that say which layers slide"
        if not isinstance(kinds, list) or len(kinds) < layers:
            return (), "its layer_types are not one for each layer"
        other = sorted({str(kind) for kind in kinds[:layers]} - {_FULL, _SLIDING})
        if other or (_SLIDING in kinds and size is None):
            return (), f"its layer_types have {', '.join(other) or 'sliding_attention without a sliding_window'}"
        return tuple(size if kind == _SLIDING else None for kind in kinds[:layers]), ""


def config_of_gguf(fields: dict[str, Any]) -> dict[str, Any]:
    """The metadata of a GGUF file as the fields of a config; what has no such field keeps its own name."""
    architecture = f"{fields.get('general.architecture')}."
    own = {key.removeprefix(architecture): value for key, value in fields.items() if key.startswith(architecture)}
    layers, size = own.pop("block_count", None), own.get("attention.sliding_window")
    pattern = own.pop("attention.sliding_window_pattern", None)
    modules = own.pop("nextn_predict_layers", 0)
    if isinstance(layers, int) and isinstance(modules, int):
        layers -= modules
    found = {"num_hidden_layers": layers, "num_nextn_predict_layers": modules}
    if isinstance(pattern, list) and size:
        found["layer_types"] = [_SLIDING if slides else _FULL for slides in pattern]
    names = {
        "embedding_length": "hidden_size",
        "context_length": "max_position_embeddings",
        "attention.head_count": "num_attention_heads",
        "attention.key_length": "head_dim",
        "attention.sliding_window": "sliding_window",
        "expert_used_count": "num_experts_per_tok",
        "attention.head_count_kv": "num_key_value_heads",
        "attention.kv_lora_rank": "kv_lora_rank",
    }
    for theirs, name in names.items():
        value = own.pop(theirs, None)
        if not isinstance(value, list):  # one for each layer
            found[name] = value
    return found | own
