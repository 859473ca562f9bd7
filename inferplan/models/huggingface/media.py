"""What a config, and the preprocessor's file beside it, say of the images, videos and sound that a tower takes.

The rules are those of the preprocessors of transformers 5.23 (:mod:`inferplan.models.media` names file and function).
What neither file says is left open and named, never taken from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inferplan.errors import SpecError
from inferplan.models.huggingface.reader import Reader
from inferplan.models.huggingface.towers.defaults import DEFAULTS

Table = dict[str, Any]
_FRAMES, _SECONDS = 100.0, 30.0
"""Frames of a spectrogram a second, and seconds of a clip, of ``WhisperFeatureExtractor`` (hop 160 at 16 kHz)."""


def with_media(towers: list[Table], outer: Reader, preprocessor: Table | None) -> list[Table]:
    """The towers with a ``media`` table each, where the rule of its kind is known.

    preprocessor: the content of ``preprocessor_config.json``.
    """
    found = []
    for tower in towers:
        rule = None if "media" in tower else _rule(tower, outer, preprocessor or {})
        found.append(tower if rule is None else tower | {"media": rule})
    return found


def _rule(tower: Table, outer: Reader, preprocessor: Table) -> Table | None:
    """The rule of one tower; ``None`` where its kind has none here, or a tensor of it no place in a pass."""
    given = outer.config.get(f"{tower['name']}_config")
    if not isinstance(given, dict):
        return None
    kind = str(outer.config.get("model_type") or "").lower()
    if tower["name"] == "vision" and "vt_hidden_size" in given:
        kind = "moonvit"
    own = str(given.get("model_type") or "")
    if own == "pixtral":
        kind = "pixtral" if kind == "llava" else kind
    make = _RULES.get((tower["name"], kind))
    if make is None:
        return None
    fields = DEFAULTS.get(_DEFAULTS.get(kind, own), {}) | given
    tables = (_Stated(fields, outer, f"{tower['name']}_config."), _Stated(outer.config, outer))
    try:
        rule = make(tower, *tables, preprocessor)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # sizes that are none
        raise outer.refuse(f"{tower['name']}_config", f"what its media are cut by is not understood: {error}") from None
    rows = rule.pop("of")

    def share(name: str) -> float | None:
        return next((part for start, part in rows.items() if name == start or name.startswith(f"{start}.")), None)

    placed = {name: share(name) for name in tower["tensors"] if not name.endswith(".bias")}
    matrices = {name for name, shape in tower["tensors"].items() if len(shape) > 1 and not name.startswith(_ADDED)}
    if any(placed.get(name) is None for name in matrices):
        return None
    return rule | {"rows": {name: part for name, part in placed.items() if part}}


class _Stated(Table):
    """A table of a config; a field that it does not have is asked for by its name."""

    def __init__(self, fields: Table, outer: Reader, prefix: str = "") -> None:
        super().__init__(fields)
        self.outer, self.prefix = outer, prefix

    def __missing__(self, field: str) -> Any:
        raise SpecError(
            f"{self.outer.name}: the config has no {self.outer.prefix}{self.prefix}{field}",
            because="images and sound are cut by it, and it is not guessed",
        )


_ADDED = ("positions", "bounds", "layers.qv_bias", "layer_scales")
"""Tensors that are added or looked up, not multiplied with."""
_DEFAULTS = {"qwen2_vl": "qwen2_vl_vision", "qwen2_5_vl": "qwen2_5_vl_vision", "exaone4_5": "exaone4_5_vision"}
"""Kinds whose tower's table names the whole model, and the class whose defaults hold then."""


def _qwen(tower: Table, vision: Table, outer: Table, preprocessor: Table) -> Table:
    """Qwen2-VL and what came after it. Its norms ahead of a merger see patches, or what is merged, by their width."""
    merge, patch = int(vision["spatial_merge_size"]), int(vision["patch_size"])
    share = 1 / merge**2
    image: Table = {"resize": "smart", "patch": patch, "merge": merge, **_limits(preprocessor)}
    rule: Table = {
        "source": "transformers 5.23 models/qwen2_vl/image_processing_qwen2_vl.py, smart_resize",
        "image": image,
        "video": {
            "temporal": int(vision["temporal_patch_size"]),
            "unknown": ["neither limits on the pixels of videos nor time stamps between their frames are counted"],
        },
        "of": {"patch": 1.0, **_norms(tower, share), "merger": share, "deepstack": share},
    }
    if vision.get("window_size"):
        image["window"] = int(vision["window_size"]) // merge // patch * merge
        rule["full"] = [int(index) for index in vision["fullatt_block_indexes"]]
    return rule


def _glm(tower: Table, vision: Table, outer: Table, preprocessor: Table) -> Table:
    """GLM-4.5V: as Qwen's, an image counted as a video of two frames."""
    merge, frames = int(vision["spatial_merge_size"]), int(vision["temporal_patch_size"])
    image = {"resize": "smart", "patch": int(vision["patch_size"]), "merge": merge, "frames": frames}
    share = 1 / merge**2
    return {
        "source": "transformers 5.23 models/glm4v/image_processing_glm4v.py, smart_resize",
        "image": image | _limits(preprocessor),
        "of": {"patch": 1.0, "norm": 1.0, "downsample": share, "merger": share},
    }


def _limits(preprocessor: Table) -> Table:
    """Fewest and most pixels, or that nobody says them."""
    size = preprocessor.get("size") or {}
    found = [
        preprocessor.get(f"{most}_pixels") or size.get(f"{edge}_edge") or size.get(f"{most}_pixels")
        for most, edge in (("min", "shortest"), ("max", "longest"))
    ]
    known = [int(limit) for limit in found if limit is not None]
    if len(known) == 2:
        return {"pixels": known}
    return {"unknown": ["no preprocessor_config.json: images are taken at any number of pixels"]}


def _norms(tower: Table, share: float) -> dict[str, float]:
    """Norms by their width: that of the tower sees every position, another what was merged."""
    width = tower["d_model"]
    shapes = tower["tensors"].items()
    return {name: (1.0 if shape[-1] == width else share) for name, shape in shapes if name.endswith("norm")}


def _gemma(tower: Table, vision: Table, outer: Table, preprocessor: Table) -> Table:
    """Gemma 3: SigLIP at one size, pooled to so many tokens; no pan and scan, which is off unless asked for."""
    size, patch, tokens = int(vision["image_size"]), int(vision["patch_size"]), int(outer["mm_tokens_per_image"])
    share = tokens / (size // patch) ** 2
    return {
        "source": "transformers 5.23 models/gemma3/modeling_gemma3.py, Gemma3MultiModalProjector",
        "image": {"resize": "fixed", "patch": patch, "size": size, "tokens": tokens},
        "of": {"patch": 1.0, "norm": 1.0, "projector": share, "head": 0.0},
    }


def _llava(tower: Table, vision: Table, outer: Table, preprocessor: Table) -> Table:
    """LLaVA: CLIP at one size, whose class token the decoder does not get unless the whole is asked for; or SigLIP."""
    size, patch = int(vision["image_size"]), int(vision["patch_size"])
    extra = int("class" in tower["tensors"])
    positions = (size // patch) ** 2 + extra
    tokens = positions - (extra if (outer.get("vision_feature_select_strategy") or "default") == "default" else 0)
    rows = {"patch": (positions - extra) / positions, "norm.before": 1.0, "projector": tokens / positions}
    return {
        "source": "transformers 5.23 models/llava/modeling_llava.py, get_image_features",
        "image": {
            "resize": "fixed",
            "patch": patch,
            "size": size,
            "tokens": tokens,
            "extra": extra,
            "unknown": [
                "every layer of the tower is priced, as transformers runs it; an engine may stop at the one read"
            ],
        },
        "of": rows | {"norm": 0.0 if extra else 1.0, "head": 0.0},
    }


def _each_patch(source: str) -> Callable[[Table, Table, Table, Table], Table]:
    """SigLIP at one size, a token a patch."""

    def rule(tower: Table, vision: Table, outer: Table, preprocessor: Table) -> Table:
        return {
            "source": f"transformers 5.23 {source}",
            "image": {"resize": "fixed", "patch": int(vision["patch_size"]), "size": int(vision["image_size"])},
            "of": {"patch": 1.0, "norm": 1.0, "projector": 1.0, "head": 0.0},
        }

    return rule


def _internvl(tower: Table, vision: Table, outer: Table, preprocessor: Table) -> Table:
    """InternVL: tiles with a class token each, their patches joined by the pixel shuffle; Aya Vision without it."""
    (size, *_), (patch, *_) = (_pair(vision[name]) for name in ("image_size", "patch_size"))
    extra = int("class" in tower["tensors"])
    merge = int(outer.get("downsample_factor") or 2) if not extra else int(1 / (outer.get("downsample_ratio") or 0.5))
    patches, most = (size // patch) ** 2, preprocessor.get("max_patches")
    unknown = [] if most else ["no preprocessor_config.json: at most 12 tiles of an image, the default of its class"]
    positions, tokens = patches + extra, (size // patch // merge) ** 2
    return {
        "source": "transformers 5.23 models/got_ocr2/image_processing_got_ocr2.py, get_optimal_tiled_canvas",
        "image": {
            "resize": "tiles",
            "patch": patch,
            "merge": merge,
            "size": size,
            "tiles": most or 12,
            "tokens": tokens,
            "extra": extra,
            "unknown": unknown,
        },
        "of": {"patch": patches / positions, "norm": 1.0, "projector": tokens / positions, "head": 0.0},
    }


def _gemma4(tower: Table, vision: Table, outer: Table, preprocessor: Table) -> Table:
    """Gemma 4: images in their shape within a number of patches, padded to it, averaged by squares of them."""
    merge, most = int(vision["pooling_kernel_size"]), preprocessor.get("max_soft_tokens")
    unknown = [] if most else ["no preprocessor_config.json: at most 280 tokens of an image, the default of its class"]
    return {
        "source": "transformers 5.23 models/gemma4/image_processing_gemma4.py, get_aspect_ratio_preserving_size",
        "image": {
            "resize": "budget",
            "patch": int(vision["patch_size"]),
            "merge": merge,
            "patches": int(most or 280) * merge**2,
            "unknown": unknown,
        },
        "of": {"patch": 1.0, "projector": 1 / merge**2},
    }


def _pair(value: Any) -> list[int]:
    return [int(one) for one in value] if isinstance(value, list) else [int(value)] * 2


def _moonvit(tower: Table, vision: Table, outer: Table, preprocessor: Table) -> Table:
    """Kimi's MoonViT: patches at any size up to a number in all and along a side."""
    given = preprocessor.get("media_proc_cfg") or preprocessor
    sizes = given.get("size") or {}
    most = given.get("in_patch_limit") or given.get("max_patches")
    side = given.get("patch_limit_on_one_side") or sizes.get("max_height")
    (across, down), patch = vision["merge_kernel_size"], int(vision["patch_size"])
    unknown = []
    if most is None or side is None:
        most, side = most or 16384, side or 512
        unknown = [f"no preprocessor_config.json: at most {most} patches and {side} a side, the defaults of its class"]
    image = {"resize": "patches", "patch": patch, "merge": across, "patches": most, "side": side, "unknown": unknown}
    return {
        "source": "transformers 5.23 models/kimi_k25/image_processing_kimi_k25.py, navit_resize",
        "image": image,
        "of": {"patch": 1.0, "norm": 1.0, "projector.norm": 1.0, "projector": 1 / (across * down)},
    }


def _pixtral(tower: Table, vision: Table, outer: Table, preprocessor: Table) -> Table:
    """Pixtral and Mistral 3: no side beyond that of the position grid; a token ends every row."""
    merge = int(outer.get("spatial_merge_size") or (2 if outer.get("model_type") == "mistral3" else 1))
    size, patch = int(vision["image_size"]), int(vision["patch_size"])
    image = {"resize": "longest", "patch": patch, "merge": merge, "size": size, "row_ends": True}
    return {
        "source": "transformers 5.23 models/pixtral/image_processing_pixtral.py, get_resize_output_image_size",
        "image": image,
        "of": {"patch": 1.0, "norm": 1.0, "projector.norm": 1.0, "projector": 1 / merge**2},
    }


def _clip(merge: int, preprocessor: Table) -> Table:
    """A clip as Whisper's feature extractor pads it, and how many positions are a token."""
    rate = preprocessor.get("sampling_rate", 16000) / preprocessor.get("hop_length", 160)
    return {"rate": rate, "stride": 2, "merge": merge, "whole": float(preprocessor.get("chunk_length", _SECONDS))}


def _qwen2_audio(tower: Table, audio: Table, outer: Table, preprocessor: Table) -> Table:
    """Qwen2-Audio: Whisper's encoder, its positions pooled in pairs ahead of the last norm."""
    return {
        "source": "transformers 5.23 models/qwen2_audio/modeling_qwen2_audio.py, Qwen2AudioEncoder",
        "audio": _clip(2, preprocessor),
        "of": {"conv.0": 2.0, "conv.1": 1.0, "norm": 0.5, "projector": 0.5},
    }


def _voxtral(tower: Table, audio: Table, outer: Table, preprocessor: Table) -> Table:
    """Voxtral: Whisper's encoder; as many positions are joined as make the width of its feed-forward."""
    merge = int(audio["intermediate_size"]) // int(audio["hidden_size"])
    return {
        "source": "transformers 5.23 models/voxtral/modeling_voxtral.py, get_audio_features",
        "audio": _clip(merge, preprocessor),
        "of": {"conv.0": 2.0, "conv.1": 1.0, "norm": 1.0, "projector": 1 / merge},
    }


def _omni_audio(tower: Table, audio: Table, outer: Table, preprocessor: Table) -> Table:
    """Qwen2.5-Omni: attention within ``2*n_window`` frames, positions pooled in pairs ahead of the last norm."""
    window = int(audio["n_window"])
    return {
        "source": "transformers 5.23 models/qwen2_5_omni/modeling_qwen2_5_omni.py, Qwen2_5OmniAudioEncoder",
        "audio": {"rate": _FRAMES, "stride": 2, "merge": 2, "window": window},
        "of": {"conv.0": 2.0, "conv.1": 1.0, "norm": 0.5, "projector": 0.5},
    }


_RULES: dict[tuple[str, str], Callable[[Table, Table, Table, Table], Table]] = {
    **{
        ("vision", kind): _qwen
        for kind in (
            *("qwen2_vl", "qwen2_5_vl", "exaone4_5", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"),
            *("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker", "cosmos3_omni", "qwen4_exp"),
        )
    },
    **{("vision", kind): _glm for kind in ("glm4v", "glm46v", "glm4v_moe")},
    ("vision", "gemma3"): _gemma,
    ("vision", "paligemma"): _each_patch("models/paligemma/modeling_paligemma.py, PaliGemmaMultiModalProjector"),
    ("vision", "llava"): _llava,
    ("vision", "janus"): _each_patch("models/janus/modeling_janus.py, get_image_features"),
    ("vision", "deepseek_vl"): _each_patch("models/deepseek_vl/modeling_deepseek_vl.py, get_image_features"),
    ("vision", "gemma4"): _gemma4,
    ("vision", "diffusion_gemma"): _gemma4,
    ("vision", "internvl"): _internvl,
    ("vision", "qianfan_ocr"): _internvl,
    ("vision", "aya_vision"): _internvl,
    ("vision", "moonvit"): _moonvit,
    ("vision", "kimi_k25"): _moonvit,
    ("vision", "mistral3"): _pixtral,
    ("vision", "pixtral"): _pixtral,
    ("audio", "qwen2_audio"): _qwen2_audio,
    ("audio", "voxtral"): _voxtral,
    ("audio", "qwen2_5_omni_thinker"): _omni_audio,
}
"""Rules by the name of a tower and the ``model_type`` of the whole config."""
