"""Models that transformers builds on the meta device, counted: parameters, and what their cache grows by.

No weights and no arithmetic: shapes alone, so that a model of any size is built in seconds.
"""

from __future__ import annotations

import re
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch.fx.experimental import _config as fx_config
from transformers.models.auto import modeling_auto

transformers.logging.set_verbosity_error()
warnings.filterwarnings("ignore")

MAPPINGS = (
    ("speech", "SPEECH_SEQ_2_SEQ", "AutoModelForSpeechSeq2Seq"),
    ("speech", "CTC", "AutoModelForCTC"),
    ("encoder", "SEQ_TO_SEQ_CAUSAL_LM", "AutoModelForSeq2SeqLM"),
    ("vision", "IMAGE_TEXT_TO_TEXT", "AutoModelForImageTextToText"),
    ("vision", "MULTIMODAL_LM", "AutoModelForMultimodalLM"),
    ("encoder", "MASKED_LM", "AutoModelForMaskedLM"),
    ("text", "CAUSAL_LM", "AutoModelForCausalLM"),
    ("encoder", "TEXT_ENCODING", "AutoModelForTextEncoding"),
)
"""Kind, mapping of ``modeling_auto``, Auto class; a type belongs to the first that has it."""

_ROPE = {"rope_type": "default", "rope_theta": 1e4}
MINIMAL: dict[str, dict[str, Any]] = {
    "aya_vision": {"vision_config": {"model_type": "siglip_vision_model", "num_attention_heads": 16}},
    "chameleon": {"vocabulary_map": {"<image>": 5}},
    "cohere_compass": {"text_config": {"rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE}}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROPE}},
    "dbrx": {"attn_config": {"rope_theta": 1e4, "kv_n_heads": 8}},
    "deepseek_ocr2": {
        "text_config": {"num_experts_per_tok": 6, "mlp_layer_types": ["dense"] + 31 * ["sparse"]},
        "vision_config": {"encoder_config": {"hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2}},
    },
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "emu3": {"vocabulary_map": {"<image>": 5}},
    "esm": {"vocab_size": 33},
    "glm4_moe": {"head_dim": 128},
    "granite4_vision": {"downsample_rate": "4/8", "deepstack_layer_map": [[-7, 0], [-4, 3]]},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "hunyuan_vl": {"text_config": {"head_dim": 128}},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 4, "num_hidden_layers": 8},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "wav2vec2-bert": {"vocab_size": 32},
    "wav2vec2-conformer": {"vocab_size": 32},
}
"""The least that a class must be told to build a model: its own default config is not accepted, or gives none."""

BLOCK = 128
"""Tokens between two lengths beyond the windows: entries that stand for several tokens are then whole."""
SECONDS = 60
"""Nothing that builds or runs on meta takes longer, unless it loops over tokens."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How a type is built: its kind, the Auto class and the name of the model class."""

    kind: str
    auto: str
    architecture: str


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What a built model has.

    total: every parameter once. text: those of the language model, ``None`` where it cannot be told apart.
    prediction: those of prediction modules, within total. growth: elements that one more token adds to the cache;
    beyond: the same where the context is longer than every window; state: elements whatever the context. The last
    three are ``None`` where the class gives no cache.
    """

    total: int
    text: int | None = None
    prediction: int = 0
    growth: float | None = None
    beyond: float | None = None
    state: float | None = None


def kinds() -> dict[str, Kind]:
    """Every type of the installed transformers that is swept."""
    found: dict[str, Kind] = {}
    for kind, mapping, auto in MAPPINGS:
        for name, architecture in getattr(modeling_auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES").items():
            first = architecture if isinstance(architecture, str) else architecture[0]
            found.setdefault(name, Kind(kind=kind, auto=auto, architecture=first))
    return found


@contextmanager
def limited(seconds: int = SECONDS) -> Iterator[None]:
    """Raise ``TimeoutError`` where the body takes longer."""

    def late(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def config_of(name: str, fields: dict[str, Any] | None = None) -> Any:
    """The config of a type with ``fields`` over what it needs at least. Raises what the class raises."""
    least, fields = MINIMAL.get(name, {}), fields or {}
    nested = {key: {**least[key], **fields[key]} for key in least.keys() & fields.keys() if key.endswith("_config")}
    return transformers.CONFIG_MAPPING[name](**least | fields | nested)


def build(config: Any, kind: Kind) -> Any:
    """The model on meta, in bf16. Raises what the class raises."""
    auto = getattr(transformers, kind.auto)
    with limited(), torch.device("meta"):
        model = auto.from_config(config, dtype=torch.bfloat16, attn_implementation="eager")
    return model.eval()


def count(model: Any) -> Counts:
    """The parameters of a built model."""
    named = dict(model.named_parameters())
    prediction = sum(p.numel() for name, p in named.items() if re.search(r"(^|\.)(mtp|nextn)[._]", name))
    return Counts(total=sum(p.numel() for p in named.values()), text=_text(model), prediction=prediction)


def _text(model: Any) -> int | None:
    """The parameters of the decoder and of its vocabulary tables."""
    model = getattr(model, "thinker", model)  # of a model that speaks, what listens, sees and writes
    try:
        parts = [model.get_decoder(), model.get_input_embeddings(), model.get_output_embeddings()]
    except (AttributeError, NotImplementedError):
        return None
    if parts[0] is None or parts[0] is model:
        return None
    unique = {id(p): p.numel() for part in parts if part is not None for p in part.parameters()}
    return sum(unique.values())


def growth(model: Any, windows: list[int]) -> tuple[float, float, float] | None:
    """Elements a token below ``windows`` and beyond them, and elements of constant size; ``None`` without a cache.

    Raises what the class raises. Where nothing slides the second is the first.
    """
    first, second = 8, 12
    low = [_cached(model, tokens) for tokens in (first, second)]
    if None in low:
        return None
    below = (low[1] - low[0]) / (second - first)
    if not windows:
        return below, below, low[0] - below * first
    far = -(-(max(windows) + 16) // BLOCK) * BLOCK
    high = [_cached(model, tokens) for tokens in (far, far + BLOCK)]
    return below, (high[1] - high[0]) / BLOCK, low[0] - below * first


def _cached(model: Any, tokens: int) -> int | None:
    """Elements of the cache after ``tokens``, those of integers (positions) left out."""
    ids = torch.ones(1, tokens, dtype=torch.long, device="meta")
    with limited(), torch.device("meta"), torch.no_grad(), fx_config.patch(meta_nonzero_assume_all_nonzero=True):
        output = model(input_ids=ids, use_cache=True)
    for name in ("past_key_values", "cache_params", "state"):
        held = getattr(output, name, None)
        if held is not None:
            tensors: dict[int, Any] = {}
            _collect(held, tensors, 0)
            return sum(t.numel() for t in tensors.values() if t.is_floating_point() and t.dim() > 1)
    return None


def _collect(held: Any, tensors: dict[int, Any], depth: int) -> None:
    """Every tensor that an object holds, once."""
    if isinstance(held, torch.Tensor):
        tensors[id(held)] = held
        return
    if depth > 6 or isinstance(held, (str, int, float, torch.nn.Module, transformers.PretrainedConfig, torch.dtype)):
        return
    inner = held.values() if isinstance(held, dict) else held if isinstance(held, (list, tuple)) else None
    if inner is None:
        inner = vars(held).values() if hasattr(held, "__dict__") else ()
    for part in inner:
        _collect(part, tensors, depth + 1)
