"""Pi-0 (2410.24164): a language model of images and words, and an expert beside it that denoises movements."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from inferplan.models.huggingface.decoder import attention, mlp
from inferplan.models.huggingface.dialect import Dialect, untimed
from inferplan.models.huggingface.reader import LAYERS, MEDIA, WIDTH, Reader
from inferplan.models.huggingface.towers import text_defaults, towers
from inferplan.models.huggingface.towers.parts import Tensors, copies, linear, norm

_FLOWS = "it puts out movements by steps of flow matching, in which an expert attends to what the language model keeps"


def pi0(gemma: Dialect) -> Callable[[Reader, Dialect], dict[str, Any]]:
    """What builds it. gemma: the family of its language model and of its expert."""
    return partial(_pi0, gemma)


def _pi0(gemma: Dialect, r: Reader, d: Dialect) -> dict[str, Any]:
    seen, expert = r.table("vlm_config"), r.table("dit_config")
    text = seen.table("text_config") if seen is not None else None
    if seen is None or text is None or expert is None:
        raise r.refuse("vlm_config and dit_config", "its config has a table for each, and a text_config in the first")
    seen.only("model_type", "paligemma")
    for half in (text, expert):
        half.only("model_type", "gemma")
    text_defaults(seen, text)
    fields = gemma.build(text, gemma)
    found, more = towers(seen, text, int(fields["d_model"]))
    expert.only("vocab_size", fields["vocab"])
    tensors = _stack(expert, gemma, fields["vocab"]) | _ends(r, expert.integer(*WIDTH))
    for half in (seen, text, expert):
        half.skip("is_causal", "use_bidirectional_attention", "tie_word_embeddings")
    seen.skip(*(name for name in seen.config if MEDIA.fullmatch(name)))
    for half in (seen, text, expert):
        half.require_read()
    r.skip("chunk_size", "num_inference_steps", "min_period", "max_period", "loss_reduction")
    r.skip(*(name for name in r.config if name.startswith("time_sampling_")))
    return fields | {
        "layers": [*fields["layers"], {"mixer": untimed(_FLOWS, tensors=tensors), "norms": 0}],
        "generation": {"kind": "encode"},
        "tied": False,
        "towers": found,
        "notes": [*text.taken(), *more],
    }


def _stack(r: Reader, gemma: Dialect, vocab: int) -> Tensors:
    """The expert: a model of the same family, with an embedding that nothing reads."""
    width, mixer, ffn = r.integer(*WIDTH), attention(r, gemma), mlp(r, gemma)
    heads, shared = mixer["heads"] * mixer["head_dim"], mixer["kv_heads"] * mixer["head_dim"]
    own = linear("q", width, heads, mixer["qkv_bias"]) | linear("kv", width, 2 * shared, mixer["qkv_bias"])
    own |= linear("o", heads, width, mixer["out_bias"]) | norm("norms", width, 2)
    own |= linear("gate_up", width, 2 * ffn["d_ff"], bias=False) | linear("down", ffn["d_ff"], width, bias=False)
    r.skip("max_position_embeddings")
    tensors = {"embedding": [vocab, width]} | norm("norm", width, 1) | copies(r.integer(*LAYERS), own)
    return {f"expert.{name}": shape for name, shape in tensors.items()}


def _ends(r: Reader, width: int) -> Tensors:
    """Projections of a state and of movements, and of the time of a step."""
    moves = r.integer("max_action_dim")
    tensors = linear("movements.in", moves, width) | linear("state", r.integer("max_state_dim"), width)
    tensors |= linear("time.in", 2 * width, width) | linear("time.out", width, width)
    return tensors | linear("movements.out", width, moves)
