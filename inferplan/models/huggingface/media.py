"""What a config, and the preprocessor's file beside it, say of the images, videos and sound that a tower takes.

The rules are those of the preprocessors of transformers 5.23 (:mod:`inferplan.models.media` names file and function).
What neither file says is left open and named, never taken from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inferplan.models.huggingface.reader import Reader

Table = dict[str, Any]


def with_media(towers: list[Table], outer: Reader, preprocessor: Table | None) -> list[Table]:
    """The towers with a ``media`` table each, where the rule of its kind is known.

    preprocessor: the content of ``preprocessor_config.json`` (or of ``image_processor`` in ``processor_config.json``).
    """
    found = []
    for tower in towers:
        rule = _rule(tower, outer, preprocessor or {})
        found.append(tower if rule is None or "media" in tower else tower | {"media": rule})
    return found


def _rule(tower: Table, outer: Reader, preprocessor: Table) -> Table | None:
    """The rule of one tower; ``None`` where its kind has none here, or a tensor of it no place in a pass."""
    vision = outer.config.get("vision_config")
    if tower["name"] != "vision" or not isinstance(vision, dict):
        return None
    kind = str(vision.get("model_type") or "")
    if kind.startswith(("qwen3_vl", "qwen3_5", "qwen2_vl", "qwen2_5_vl")):
        rule = _qwen(tower, vision, preprocessor)
    elif kind == "siglip_vision_model" and "mm_tokens_per_image" in outer.config:
        rule = _gemma(vision, int(outer.config["mm_tokens_per_image"]))
    elif "vt_hidden_size" in vision:
        rule = _moonvit(vision, preprocessor)
    elif kind == "pixtral":
        rule = _pixtral(vision, int(outer.config.get("spatial_merge_size") or 1))
    else:
        return None
    rows = rule.pop("of")
    merged: Callable[[str], float | None] = lambda name: next(  # noqa: E731
        (share for start, share in rows.items() if name == start or name.startswith(f"{start}.")), None
    )
    placed = {name: share for name in tower["tensors"] if (share := merged(name)) and not name.endswith(".bias")}
    matrices = {name for name, shape in tower["tensors"].items() if len(shape) > 1 and not name.startswith("positions")}
    return rule | {"rows": placed} if matrices <= placed.keys() else None


def _qwen(tower: Table, vision: Table, preprocessor: Table) -> Table:
    """Qwen2-VL and what came after it. Its norms ahead of a merger see patches, or what is merged, by their width."""
    merge, patch = int(vision["spatial_merge_size"]), int(vision["patch_size"])
    share = 1 / merge**2
    size = preprocessor.get("size") or {}
    limits = [
        preprocessor.get(f"{most}_pixels") or size.get(f"{edge}_edge") or size.get(f"{most}_pixels")
        for most, edge in (("min", "shortest"), ("max", "longest"))
    ]
    image: Table = {"resize": "smart", "patch": patch, "merge": merge}
    known = [int(limit) for limit in limits if limit is not None]
    if len(known) == 2:
        image["pixels"] = known
    if vision.get("window_size"):
        image["window"] = int(vision["window_size"]) // patch
    norms = {
        name: (1.0 if shape[-1] == vision["hidden_size"] else share)
        for name, shape in tower["tensors"].items()
        if name.endswith("norm")
    }
    image["unknown"] = (
        [] if len(known) == 2 else ["no preprocessor_config.json: images are taken at any number of pixels"]
    )
    return {
        "source": "transformers 5.23 models/qwen2_vl/image_processing_qwen2_vl.py, smart_resize",
        "image": image,
        "video": {
            "temporal": int(vision["temporal_patch_size"]),
            "unknown": ["neither limits on the pixels of videos nor time stamps between their frames are counted"],
        },
        "of": {"patch": 1.0, **norms, "merger": share, "deepstack": share},
    }


def _gemma(vision: Table, tokens: int) -> Table:
    """Gemma 3: SigLIP at one size, pooled to so many tokens; no pan and scan, which is off unless asked for."""
    size, patch = int(vision["image_size"]), int(vision["patch_size"])
    share = tokens / (size // patch) ** 2
    return {
        "source": "transformers 5.23 models/gemma3/modeling_gemma3.py, Gemma3MultiModalProjector",
        "image": {"resize": "fixed", "patch": patch, "size": size, "tokens": tokens},
        "of": {"patch": 1.0, "norm": 1.0, "projector": share},
    }


def _moonvit(vision: Table, preprocessor: Table) -> Table:
    """Kimi's MoonViT: patches at any size up to a number in all and along a side."""
    given = preprocessor.get("media_proc_cfg") or {}
    most, side = given.get("in_patch_limit"), given.get("patch_limit_on_one_side")
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


def _pixtral(vision: Table, merge: int) -> Table:
    """Pixtral and Mistral 3: no side beyond that of the position grid; a token ends every row."""
    share = 1 / merge**2
    size, patch = int(vision["image_size"]), int(vision["patch_size"])
    return {
        "source": "transformers 5.23 models/pixtral/image_processing_pixtral.py, get_resize_output_image_size",
        "image": {"resize": "longest", "patch": patch, "merge": merge, "size": size, "row_ends": True},
        "of": {"patch": 1.0, "norm": 1.0, "pre_norm": 1.0, "projector.norm": 1.0, "projector": share},
    }
