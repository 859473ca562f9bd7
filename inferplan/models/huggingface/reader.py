"""Reads a vendor's config field by field, and knows at the end which fields nobody has read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isfinite
from typing import Any

from inferplan.errors import SpecError, UndescribedError
from inferplan.models.provenance import ASSUMED

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
DTYPES |= {f"torch.{name}": width for name, width in DTYPES.items()}
"""Types of torch, as configs write them, to formats."""
WIDTH = ("hidden_size", "n_embd", "n_embed", "d_model")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "multi_query_group_num")
HEAD_DIM = ("head_dim", "attention_head_dim", "kv_channels")
FFN = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "mlp_hidden_size")
CONTEXT = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "context_length",
)
ACTIVATION = (
    "hidden_act",
    "hidden_activation",
    "activation_function",
    "activation",
    "activation_type",
    "mlp_hidden_act",
)
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
TOP_K = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_top_k", "moe_k")
MOE_FFN = ("moe_intermediate_size", "expert_ffn_hidden_size", "expert_hidden_dim")

SYNONYMS = (
    *(WIDTH, LAYERS, HEADS, HEAD_DIM, MOE_FFN, (*FFN, "block_ff_dim")),
    *((*KV_HEADS, "num_attention_groups"), (*CONTEXT, "model_max_length"), EXPERTS, TOP_K),
    ("n_shared_experts", "num_shared_experts"),
)
"""Names of one thing in the table of a language model."""

# Fields of any config that change neither a tensor's shape nor the cache: what generation, training, the tokenizer, the
# loader and position interpolation read. The position embeddings of rotary kinds have no parameters.
UNIMPORTANT = re.compile(
    r"""
    architectures | auto_map | model_type | transformers_version | use_cache | torch_dtype | dtype | quantization_config
    | .*_token | .*_token_(id|ids|index) | .*_token_index | tokenizer_(class|type|name)
    | initializer_(range|factor|std) | init_.* | .*_init | .*_init_std | .*_std | embedding_initializer_range
    | .*dropout.* | .*_pdrop | .*_drop(out)?_prob | .*loss.* | .*_coef | .*_lambda | z_loss.*
    | (rms|layer)_?norm_eps(ilon)? | (layer_norm|norm|rms_norm)_(eps|epsilon) | layer_norm_epsilon | norm_epsilon
    | rope_.* | rotary_.* | partial_rotary_factor | mrope_.* | yarn_.* | original_max_position_embeddings
    | use_dynamic_ntk | use_logn_attn | alibi_bias_max | cope_.* | no_rope_layer_interval
    | hidden_act | mlp_hidden_act | .*_dtype | vision_config | audio_config
    | fp16 | bf16 | fp32 | use_bfloat16 | residual_in_fp32 | .*_in_fp32 | onnx_safe | use_flash_attn.*
    | attn_implementation
    | return_dict.* | output_.* | torchscript | tf_legacy_loss | pruned_heads | chunk_size_feed_forward | is_decoder
    | is_encoder_decoder | cross_attention_hidden_size | add_cross_attention | tie_encoder_decoder | max_length
    | min_length | do_sample | early_stopping | num_beams | num_beam_groups | diversity_penalty | temperature | top_k
    | top_p | typical_p | repetition_penalty | length_penalty | no_repeat_ngram_size | encoder_no_repeat_ngram_size
    | bad_words_ids | num_return_sequences | suppress_tokens | begin_suppress_tokens | exponential_decay_length_penalty
    | remove_invalid_values | finetuning_task | id2label | label2id | num_labels | prefix | problem_type | summary_.*
    | task_specific_params | pretraining_tp | gradient_checkpointing.* | ignore_index | name_or_path
    | unsloth_.* | router_jitter_noise | input_jitter_noise | router_dtype | routed_scaling_factor | norm_topk_prob
    | scoring_func | topk_method | topk_group | n_group | seq_aux | ep_size | router_.*_bias_update.*
    | logits?_scal(e|ing)
    | embedding_multiplier | residual_multiplier | attention_multiplier | logits_scaling | .*_multipliers?
    | .*logit_softcapping | query_pre_attn_scalar | scale_(attn_weights|embedding|emb|depth|attention.*|by.*)
    | reorder_and_upcast_attn | scale_attn_by_inverse_layer_idx | attention_softmax_in_fp32 | clip_qkv
    | final_logit.* | attn_temperature_tuning | floor_scale | attn_scale | num_logits_to_keep | use_mamba_kernels
    | time_step_.* | mamba_ssm_(cache_)?dtype | rescale_prenorm_residual | rescale_.* | cache_implementation
    | initial_context_length | mask_token_id
    | eos | bos | pad | model_parallel | slow_but_exact | skip_bias_add | masked_softmax_fusion | bias_dropout_fusion
    | attention_head_scale | torch_compile | keep_.*_fp32 | enable_.*_routing_.* | sep_token_id | use_parallel_embedding
    | attention_probs_.* | classifier_.* | language | languages | base_model_.*
    | chunk_size | mamba_chunk_size | fused_add_norm | use_associative_scan | swiglu_.* | xla_device
    | layernorm_.*_(alpha|beta) | is_llama_config | transformers\.js_config
    """,
    re.VERBOSE,
)

# Fields beside a nested text_config that describe the media part or its placeholders, not the language model.
MEDIA = re.compile(r"(image|video|audio|vision|media|mm|boi|eoi|boa|eoa|projector|multimodal|spatial|use_unified).*")


POSITIVE = frozenset({*WIDTH, *LAYERS, *HEADS, *KV_HEADS, *HEAD_DIM, *CONTEXT, "vocab_size"})
"""Sizes without which there is no model."""
MOST_LAYERS = 10_000
LARGEST = 10**9
"""Beyond it a size is a mistake in a file, not a model."""


def _off(value: Any) -> bool:
    """Whether a field says that something is not there: an integer 0 may be a number of something, and does not."""
    return value is None or value is False or value in ("", [], {}) or (isinstance(value, float) and value == 0.0)


class Reader:
    """One config. Each method marks the fields that it reads; ``unread`` are the others.

    A field that holds ``null`` counts as absent. Several names are alternatives; two that disagree are refused.
    """

    def __init__(self, config: dict[str, Any], name: str, prefix: str = "", trail: list[str] | None = None) -> None:
        self.config = {key: value for key, value in config.items() if not key.startswith("_")}
        self.name, self.prefix = name, prefix
        self.trail = [] if trail is None else trail
        """The fields read last, with their values: shared with the tables in this one."""
        self.read: set[str] = set()
        self.skipped: set[str] = set()
        self.filled: set[str] = set()

    def fill(self, defaults: dict[str, Any], synonyms: tuple[tuple[str, ...], ...] = ()) -> None:
        """Give the fields that are not there at all what their class says. A null stays null.

        synonyms: groups of names of one thing, of which any is a statement.
        """
        same = {name: group for group in synonyms for name in group}
        for name, value in defaults.items():
            if self.config.keys().isdisjoint(same.get(name, (name,))):
                self.filled.add(name)
                self.config[name] = value

    def taken(self) -> list[str]:
        """A note of the fields that were filled in and then read."""
        table = f"{self.prefix.rstrip('.')}: " if self.prefix else ""
        said = ", ".join(f"{name} = {self.config[name]}" for name in self.config if name in self.filled & self.read)
        return [f"{ASSUMED}{table}{said}: not in the config, the defaults of its class"] if said else []

    def refuse(self, field: str, because: str, hint: str = "") -> SpecError:
        """The error that names a field."""
        return SpecError(f"{self.name}: {self.prefix}{field} is not understood", because=because, hint=hint)

    def get(self, *names: str) -> Any:
        """The value of the first of ``names`` that is there, ``None`` when none is."""
        self.read.update(names)
        found = {name: self.config[name] for name in names if self.config.get(name) is not None}
        values = list(found.values())
        self.trail[:] = [f"{self.prefix}{key} = {value!r:.80}" for key, value in found.items()] or self.trail
        if any(value != values[0] for value in values[1:]):
            raise self.refuse(" and ".join(found), f"they disagree: {', '.join(map(str, values))}")
        return values[0] if values else None

    def need(self, *names: str) -> Any:
        """As :meth:`get`. Raises ``SpecError`` when none is there."""
        value = self.get(*names)
        if value is None:
            raise SpecError(
                f"{self.name}: the config has no {self.prefix}{names[0]}",
                because="the counts depend on it, and it is not guessed",
                hint=f"also accepted as {', '.join(names[1:])}" if len(names) > 1 else "",
            )
        return value

    def integer(self, *names: str, default: int | None = None) -> int:
        """A required integer, or the given default when absent."""
        value = self.need(*names) if default is None else self.get(*names)
        if value is None and default is not None:
            return default
        whole = isinstance(value, int) or (isinstance(value, float) and isfinite(value) and not value % 1)
        if isinstance(value, bool) or not whole:
            raise self.refuse(names[0], f"it is {value!r}, not an integer")
        least, most = (1 if POSITIVE.intersection(names) else -1), (MOST_LAYERS if names == LAYERS else LARGEST)
        if not least <= value <= most:
            raise self.refuse(f"{names[0]} = {value!r}", f"it must be from {least} to {most:,}")
        return int(value)

    def optional(self, *names: str) -> int | None:
        """An integer or ``None``."""
        return None if self.get(*names) is None else self.integer(*names)

    def flag(self, name: str, default: bool) -> bool:
        """A switch."""
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(name, f"it is {value!r}, not true or false")
        return value

    def items(self, name: str, length: int) -> list[Any] | None:
        """A list with one entry a layer, or ``None`` when absent or empty."""
        value = self.get(name)
        if value is None or value == []:
            return None
        if not isinstance(value, list) or len(value) != length:
            size = f"{len(value)} entries" if isinstance(value, list) else repr(value)
            raise self.refuse(name, f"it has {size} for {length} layers")
        return value

    def table(self, name: str) -> Reader | None:
        """A nested mapping, to be read in its turn, or ``None``."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.refuse(name, f"it is {value!r}, not a mapping")
        return Reader(value, self.name, f"{self.prefix}{name}.", self.trail)

    def layer_table(self, index: int) -> Reader | None:
        """As :meth:`table`, of a mapping by the numbers of layers: ``"03"`` or ``"3"``."""
        return self.table(f"{index:02d}") or self.table(str(index))

    def need_table(self, name: str) -> Reader:
        """As :meth:`table`. Raises ``SpecError`` where there is none."""
        self.need(name)
        found = self.table(name)
        assert found is not None
        return found

    def only(self, name: str, *allowed: Any) -> None:
        """Refuse a field whose value is not one of ``allowed``; absent is allowed."""
        value = self.get(name)
        if value is not None and value not in allowed:
            known = ", ".join(repr(option) for option in allowed)
            what = f"{self.name}: {self.prefix}{name} = {value!r} is not understood"
            raise UndescribedError(what, because=f"only {known} is known for this family")

    def skip(self, *names: str) -> None:
        """Fields that this family's counts do not depend on."""
        self.skipped.update(names)

    def unread(self) -> list[str]:
        """Fields that nobody has read and that could matter: neither unimportant nor switched off."""
        known = self.read | self.skipped | self.filled
        return [
            key
            for key, value in self.config.items()
            if key not in known and not UNIMPORTANT.fullmatch(key) and not _off(value)
        ]

    def require_read(self, whose: str = "config of this family", beside: Sequence[str] = ()) -> None:
        """Raise ``UndescribedError`` that names the fields which :meth:`unread` has left.

        whose: of which config they are, in words. beside: such fields of the table around it, by their paths.
        """
        left = [*(f"{self.prefix}{name}" for name in self.unread()), *beside]
        if left:
            raise UndescribedError.of_fields(
                f"{self.name}: the config has fields that are not understood: {', '.join(left)}",
                left,
                because=f"a {whose} is not known to have them, and they could change the counts",
                hint="take a field out if it does not matter; else write the model as a YAML (docs/models.md)",
            )

    def ignored(self) -> list[str]:
        """Fields of the config that did not matter."""
        return sorted(f"{self.prefix}{key}" for key in self.config if key not in self.read)
