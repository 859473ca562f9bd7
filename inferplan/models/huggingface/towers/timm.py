"""Towers whose shapes no config states, those of the timm library: what joins them is counted, they are not."""

from __future__ import annotations

from typing import Any

from inferplan.models.huggingface.reader import Reader
from inferplan.models.huggingface.towers.beside import VISION, Beside, Media, vision
from inferplan.models.huggingface.towers.parts import feed_forward, tower

TIMM = "timm_wrapper"


def timm(r: Reader) -> dict[str, Any]:
    """A model that timm builds by its name: no field here is a shape of it, but for the width it puts out."""
    r.skip(*(name for name in r.config if name not in ("hidden_size", "model_args")))
    return tower(r.integer("hidden_size", default=1), [], {})


def _said(m: Media) -> None:
    own = m.tables[VISION]
    if own.get("model_type") in (None, TIMM):
        m.notes.append(f"the tower of vision_config ({own.get('architecture') or 'of timm'}, of timm) is not counted")


def fast_vlm(m: Media) -> None:
    """FastVLM (2412.13303): two matrices."""
    _said(m)
    m.tables[VISION].skip("model_args")
    m.outer.only("vision_feature_layer", -1)
    width, bias = m.tables[VISION].integer("hidden_size"), m.outer.flag("multimodal_projector_bias", True)
    m.add(VISION, feed_forward("projector", [width, m.d_model, m.d_model], bias))


def perception(m: Media) -> None:
    """PerceptionLM (2504.13180): two matrices, then a mean over neighbours."""
    _said(m)
    own = m.tables[VISION]
    arguments = own.table("model_args")
    if arguments is None:
        raise own.refuse("model_args", "it is absent, and embed_dim in it is what the projector reads")
    m.add(VISION, feed_forward("projector", [arguments.integer("embed_dim"), m.d_model, m.d_model]))
    own.skip("hidden_size")


TOWERS = {TIMM: timm}

JOINED: dict[str, Beside] = {
    "fast_vlm": vision(TIMM, fast_vlm, "vision_feature_select_strategy", "image_seq_length", "projector_hidden_act"),
    "perception_lm": vision(TIMM, perception, "vision_use_cls_token", "projector_pooling_ratio"),
}
"""Rows of the table of what stands beside a language model."""
