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
from unittest.mock import patch

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

_DRAFTS = {"text_config": {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}}
_WAVES = "AutoModelForTextToWaveform"
WHOLE = {
    "musicgen": ("text", _WAVES, "MusicgenForConditionalGeneration"),
    "musicgen_melody": ("text", _WAVES, "MusicgenMelodyForConditionalGeneration"),
}
"""Types whose causal class is their decoder's alone: kind, Auto class and class of the whole."""

_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_QSA = {
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 256,
    "indexer_budget": 2048,
    "indexer_compress_ratio": 16,
}
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
    "diffusion_gemma": {"text_config": {"num_experts": 16, "top_k_experts": 4, "moe_intermediate_size": 704}},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "emu3": {"vocabulary_map": {"<image>": 5}},
    "esm": {"vocab_size": 33},
    "gemma4_assistant": _DRAFTS,
    "gemma4_unified_assistant": {"text_config": {}},
    "glm4_moe": {"head_dim": 128},
    "granite4_vision": {"downsample_rate": "4/8", "deepstack_layer_map": [[-7, 0], [-4, 3]]},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "hunyuan_vl": {"text_config": {"head_dim": 128}},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 4, "num_hidden_layers": 8},
    "moonshine_streaming": {"num_key_value_heads": 8},
    "ministral": {"head_dim": 128},
    "qwen3_omni_moe": {
        "talker_config": {"text_config": {"shared_expert_intermediate_size": 768}, "spatial_merge_size": 2}
    },
    "nemotron": {"num_key_value_heads": 8},
    "encoder-decoder": {"decoder": {"model_type": "bert", "is_decoder": True, "add_cross_attention": True}},
    "speech-encoder-decoder": {"decoder": {"model_type": "bert", "is_decoder": True, "add_cross_attention": True}},
    "perception_lm": {"vision_config": {"model_type": "timm_wrapper", "model_args": {"embed_dim": 1536}}},
    "vision-encoder-decoder": {"decoder": {"model_type": "bert", "is_decoder": True, "add_cross_attention": True}},
    "qwen4_exp_text": _QSA,
    "qwen4_exp": {"text_config": _QSA},
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
            own = WHOLE.get(name, (kind, auto, first))
            found.setdefault(name, Kind(kind=own[0], auto=own[1], architecture=own[2]))
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
    nested = {
        key: {**least[key], **fields[key]} for key in least.keys() & fields.keys() if isinstance(least[key], dict)
    }
    return transformers.CONFIG_MAPPING[name](**least | fields | nested)


@contextmanager
def _without_timm() -> Iterator[None]:
    """Leave out the towers that timm builds by their names: no config states their shapes, and none is compared."""
    made = transformers.AutoModel.from_config

    def other(config: Any, **more: Any) -> Any:
        return torch.nn.Identity() if config.model_type in ("timm_wrapper", "gemma3n_vision") else made(config, **more)

    with patch.object(transformers.AutoModel, "from_config", other):
        yield


@contextmanager
def _drafting(config: Any) -> Iterator[None]:
    """Gemma 4's assistants: every layer reads a cache of the model beside it, which their text config is asked for and
    refuses, since none of its own layers writes one."""
    if not config.model_type.endswith("_assistant"):
        yield
        return
    every = property(lambda text: ["reuse"] * text.num_hidden_layers)
    with patch.object(type(config.text_config), "kv_sharing_modes", every):
        yield


def build(config: Any, kind: Kind) -> Any:
    """The model on meta, in bf16. Raises what the class raises."""
    auto = getattr(transformers, kind.auto)
    known = type(config) in auto._model_mapping
    make = auto.from_config if known else getattr(transformers, kind.architecture)._from_config
    with limited(), torch.device("meta"), _without_timm(), _drafting(config):
        model = make(config, dtype=torch.bfloat16, attn_implementation="eager")
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
    unique = {id(p): p.numel() for part in parts if isinstance(part, torch.nn.Module) for p in part.parameters()}
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
    written = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with limited(), torch.device("meta"), torch.no_grad(), fx_config.patch(meta_nonzero_assume_all_nonzero=True):
        output = model(input_ids=ids, use_cache=True, **written)
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
