"""Configs in the format of a model's first release, written in the tables that the importer reads.

LLaVA's own (github.com/haotian-liu/LLaVA), Janus' (github.com/deepseek-ai/Janus), Phi-3-vision's (the modelling code of
its checkpoint) and Step's without tables. What such a config says by the name of a tower stands here with its source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

from inferplan.models.huggingface.reader import Reader
from inferplan.models.provenance import ASSUMED

Config = dict[str, Any]

_CLIP = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "num_channels": 3,
    "patch_size": 14,
}
_TOWERS: dict[str, Config] = {
    "openai/clip-vit-large-patch14": _CLIP | {"image_size": 224},
    "openai/clip-vit-large-patch14-336": _CLIP | {"image_size": 336},
    # github.com/deepseek-ai/Janus, janus/models/siglip_vit.py, SigLIP_MODEL_CONFIG; global_pool is "map".
    "siglip_large_patch16_384": {
        "model_type": "janus_vision_model",
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "num_channels": 3,
        "mlp_ratio": 4.0,
        "patch_size": 16,
        "image_size": 384,
    },
}
"""Towers that a config names: what the config.json of that name on the hub says, or the code that builds it."""


def _tower(table: Reader, name: str) -> Config:
    """The table of the tower that a field names. Raises ``SpecError`` for another."""
    said = table.need(name)
    if said not in _TOWERS:
        raise table.refuse(f"{name} = {said!r}", f"the sizes of {', '.join(_TOWERS)} alone are known by name")
    return deepcopy(_TOWERS[said])


def _llava(r: Reader) -> Config | None:
    """LLaVA 1.5 and 1.6: a Llama or Mistral whose tower is named. ``None`` for the config of transformers' class."""
    if r.get("mm_vision_tower") is None:
        return None
    vision = _tower(r, "mm_vision_tower")
    r.only("mm_hidden_size", vision["hidden_size"])
    r.only("mm_projector_type", "mlp2x_gelu")
    r.only("mm_resampler_type", None)
    newline = str(r.get("mm_patch_merge_type") or "flat")
    r.only("mm_patch_merge_type", "flat", "spatial_unpad")
    text = {key: value for key, value in r.config.items() if key not in r.read and not _LLAVA_OWN.fullmatch(key)}
    family = "mistral" if r.config.get("model_type") == "llava_mistral" else "llama"
    return {
        "model_type": "llava" if newline == "flat" else "llava_next",
        "architectures": text.pop("architectures", None),
        "text_config": text | {"model_type": family},
        "vision_config": vision,
        "tie_word_embeddings": text.get("tie_word_embeddings", False),
    }


_LLAVA_OWN = re.compile(
    r"(tune|freeze|unfreeze)_mm_.* | use_mm_proj | mm_\w+_lr | mm_use_im_(patch_token|start_end)"
    r" | mm_vision_select_(layer|feature) | image_(aspect_ratio|grid_pinpoints|crop_resolution|split_resolution)"
    r" | tokenizer_(padding_side|model_max_length)",
    re.VERBOSE,
)
"""Of how it was trained and how an image is cut; the words for images are among ``vocab_size``."""


def _phi3_vision(r: Reader) -> Config:
    """Phi-3-vision and Phi-3.5-vision: a Phi-3 whose tower is named in ``img_processor``."""
    images, joined = r.need_table("img_processor"), r.need_table("embd_layer")
    vision = _tower(images, "model_name")
    images.only("name", "clip_vision_model")
    images.only("image_dim_out", vision["hidden_size"])
    images.skip("num_img_tokens", "layer_idx", "type_feature")
    for name, known in _PHI3_JOIN.items():
        joined.only(name, known)
    for table in (images, joined):
        table.require_read()
    text = {key: value for key, value in r.config.items() if key not in ("img_processor", "embd_layer", "auto_map")}
    return {
        "model_type": "phi3_v",
        "architectures": text.pop("architectures", None),
        "text_config": text | {"model_type": "phi3"},
        "vision_config": vision,
        "tie_word_embeddings": text.get("tie_word_embeddings", False),
    }


_PHI3_JOIN = {
    "embedding_cls": "image",
    "hd_transform_order": "sub_glb",
    "projection_cls": "mlp",
    "use_hd_transform": True,
    "with_learnable_separator": True,
}
"""What vLLM's models/phi3v.py reads: four patches joined, two matrices, a vector behind a row and one between views."""


def _janus(r: Reader) -> Config:
    """Janus and Janus-Pro: tables of classes and their parameters."""
    text = r.need_table("language_config").config
    parts = {name: _parameters(r, f"{name}_config", cls) for name, cls in _JANUS.items()}
    vision = _tower(parts["vision"], "model_name")
    parts["vision"].only("image_size", vision["image_size"])
    parts["vision"].only("select_layer", -1)
    parts["vision"].skip("select_feature")
    aligner, drawing = parts["aligner"], parts["gen_aligner"]
    for one in (aligner, drawing):
        one.only("projector_type", "mlp_gelu")
    aligner.only("input_dim", vision["hidden_size"])
    codes, head = parts["gen_vision"], parts["gen_head"]
    width = codes.integer("n_embed")
    drawing.only("input_dim", width)
    head.only("image_token_size", codes.integer("image_token_size"))
    head.only("image_token_embed", drawing.integer("n_embed"))
    kept = {key: value for key, value in r.config.items() if not key.endswith("_config")}
    vision |= {"depth": aligner.integer("depth"), "projection_dim": aligner.integer("n_embed")}
    drawn = {
        "model_type": "janus_vqgan",
        "embed_dim": width,
        "num_embeddings": codes.integer("image_token_size"),
        "projection_dim": head.integer("n_embed"),
        "image_token_embed_dim": head.integer("image_token_embed"),
        "num_hidden_layers": drawing.integer("depth"),
    }
    for part in parts.values():
        part.require_read()
    return kept | {
        "text_config": text,
        "vision_config": vision,
        "vq_config": drawn,
        "tie_word_embeddings": text.get("tie_word_embeddings", False),
    }


_JANUS = {
    "vision": "CLIPVisionTower",
    "aligner": "MlpProjector",
    "gen_vision": "VQ-16",
    "gen_aligner": "MlpProjector",
    "gen_head": "vision_head",
}


def _parameters(r: Reader, name: str, cls: str) -> Reader:
    """The parameters of the one class that a table may name."""
    table = r.need_table(name)
    table.only("cls", cls)
    return table.need_table("params")


def _step(r: Reader) -> Config | None:
    """Step 3.7 without tables: all of it is the language model. ``None`` where it has them."""
    if "text_config" in r.config:
        return None
    text = {key: value for key, value in r.config.items() if key not in ("architectures", "model_type")}
    return {
        "model_type": "step3p7",
        "architectures": r.config.get("architectures"),
        "text_config": text | {"model_type": "step3p5"},
        "tie_word_embeddings": text.get("tie_word_embeddings", False),
    }


def _mimo(r: Reader) -> Config | None:
    """MiMo-V2.5: with matrices for query, key and value each it is stored as MiMo-V2-Flash is."""
    split = r.get("attention_projection_layout") == "split"
    return {**r.config, "model_type": "mimo_v2_flash"} if split else None


_FORMATS: dict[str, Callable[[Reader], Config | None]] = {
    "llava": _llava,
    "llava_llama": _llava,
    "llava_mistral": _llava,
    "mimo_v2": _mimo,
    "multi_modality": _janus,
    "phi3_v": _phi3_vision,
    "step3p7": _step,
}


def in_tables(config: Config, name: str) -> tuple[Config, list[str]]:
    """A config in the tables that the importer reads, the same one where it is written so; notes of what a name says.

    Raises ``SpecError`` that names a field of the original format that is not understood.
    """
    rule = _FORMATS.get(str(config.get("model_type") or "").lower())
    reader = Reader(config, name)
    found = rule(reader) if rule is not None else None
    if found is None:
        return config, []
    named = [value for value in _names(config) if value in _TOWERS]
    notes = [f"{ASSUMED}the sizes of its tower: those of {value}, which the config names" for value in named]
    return {key: value for key, value in found.items() if value is not None}, notes


def _names(value: Any) -> Iterator[str]:
    """Every word in a config."""
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else ():
        yield from _names(inner)
