"""GGUF files to :class:`~inferplan.models.spec.ModelSpec`: layers from the tensors, the rest from the metadata.

The sum of the model's parameters must be that of the file's elements; a tensor that no part of a layer has is refused.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from inferplan.errors import SpecError, UnknownFamilyError
from inferplan.models.checkpoint import Checkpoint, read_gguf
from inferplan.models.gguf.layers import layer
from inferplan.models.gguf.metadata import LayerTensors, Metadata, Shape, blocks, parameters
from inferplan.models.gguf.stored import native_of, size_note
from inferplan.models.huggingface.decoder import activation, sliding
from inferplan.models.huggingface.dialect import Dialect, Layer, compress
from inferplan.models.huggingface.families import FAMILIES
from inferplan.models.huggingface.reader import Reader
from inferplan.models.spec import ModelSpec, Native

__all__ = ["ARCHITECTURES", "import_gguf"]

ARCHITECTURES = {
    **{name: name for name in ("llama", "baichuan", "orion", "internlm2", "minicpm", "minicpm3", "gemma", "gemma2")},
    **{name: name for name in ("qwen2", "qwen3", "qwen3next", "phi3", "phimoe", "starcoder2", "mamba", "mamba2")},
    **{name: name for name in ("jamba", "cohere2", "dbrx", "olmo", "olmo2", "olmoe", "deepseek", "glm4", "nemotron")},
    **{name: name for name in ("nemotron_h", "exaone4", "granite", "granitemoe", "dots1", "arcee", "afmoe")},
    **{
        name: name for name in ("ernie4_5", "smollm3", "seed_oss", "stablelm", "gpt2", "falcon", "bloom", "qwen", "mpt")
    },
    "mistral": "mistral",
    "deci": "nemotron-nas",
    "llama4": "llama4_text",
    "qwen2moe": "qwen2_moe",
    "qwen2vl": "qwen2",
    "qwen3moe": "qwen3_moe",
    "qwen3next": "qwen3_next",
    "qwen3vl": "qwen3",
    "qwen3vlmoe": "qwen3_moe",
    "qwen35": "qwen3_5_text",
    "qwen35moe": "qwen3_5_moe_text",
    "phi2": "phi",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "command-r": "cohere",
    "deepseek2": "deepseek_v3",
    "chatglm": "chatglm",
    "glm4moe": "glm4_moe",
    "glm-dsa": "glm_moe_dsa",
    "nemotron_h_moe": "nemotron_h",
    "exaone-moe": "exaone_moe",
    "granitehybrid": "granitemoehybrid",
    "ernie4_5-moe": "ernie4_5_moe",
    "falcon-h1": "falcon_h1",
    "hunyuan-moe": "hunyuan_v1_moe",
    "hunyuan-dense": "hunyuan_v1_dense",
    "gpt-oss": "gpt_oss",
    "llada": "llada",
    "minimax-m2": "minimax_m2",
    "mistral3": "ministral3",
    "mistral4": "mistral4",
    "mimo2": "mimo_v2_flash",
    "gptj": "gptj",
    "gptneox": "gpt_neox",
    "starcoder": "gpt_bigcode",
    "bitnet": "bitnet",
    "apertus": "apertus",
    "jais2": "jais2",
}
"""Architectures as llama.cpp names them (``LLM_ARCH_NAMES``), and the family whose rules hold for their layers."""
_OUTSIDE = ("token_embd.weight", "output.weight", "output.bias", "output_norm.weight", "output_norm.bias")
_EMBEDDING = ("token_embd_norm.weight", "token_embd_norm.bias", "position_embd.weight")
_PER_LAYER = ("per_layer_token_embd.weight", "per_layer_model_proj.weight", "per_layer_proj_norm.weight")
_ENDS = (*_OUTSIDE, *_EMBEDDING, *_PER_LAYER)


def import_gguf(path: Path) -> ModelSpec:
    """The model of a GGUF file, or of all parts of a split one, in the formats that it stores.

    Raises ``SpecError`` for an architecture, a tensor or a shape that is not understood, and where the parameters of
    the model are not the elements of the file.
    """
    checkpoint, fields = read_gguf(path)
    metadata = Metadata(fields, path.stem)
    try:
        dialect, family = _dialect(metadata)
    except UnknownFamilyError as unknown:
        return _told(checkpoint, metadata, unknown.what)
    inside, outside = blocks(checkpoint.tensors, path.stem)
    table = outside.get("token_embd.weight")
    if table is None or len(table) != 2 or not inside:
        lacking = "layers" if table is not None and len(table) == 2 else "token_embd.weight of rows and columns"
        raise SpecError(f"{path.stem}: the file has no {lacking}", because="the counts depend on it")
    stated = metadata.optional("block_count")
    if stated not in (None, len(inside)):
        raise SpecError(
            f"{path.stem}: the file has {len(inside)} layers",
            because=f"its {metadata.architecture}.block_count is {stated}",
            hint="a part of a split file is missing, or the metadata are those of another model",
        )
    unread = [name for name in outside if name not in _ENDS]
    if unread:
        raise SpecError(f"{path.stem}: tensors of the file are not understood: {', '.join(unread[:4])}")
    modules = metadata.optional("nextn_predict_layers") or 0
    if not 0 <= modules < len(inside):
        because = f"{modules} of its {len(inside)} layers would predict"
        raise SpecError(f"{path.stem}: nextn_predict_layers is not understood", because=because)
    inner = inside[: len(inside) - modules]
    layers = _windowed(inner, metadata, dialect, family)
    data: dict[str, Any] = {
        "name": path.stem.lower(),
        "family": family,
        "source": str(path),
        "made_from": {"file": str(path), "tensors": True},
        "d_model": table[0],
        "vocab": table[1],
        "tied": "output.weight" not in outside,
        "max_context": metadata.optional("context_length"),
        "positions": outside["position_embd.weight"][1] if "position_embd.weight" in outside else 0,
        "norm": dialect.norm,
        "final_norm": "output_norm.weight" in outside or dialect.norm == "plain",
        "embedding_norm": "token_embd_norm.weight" in outside,
        "head_bias": "output.bias" in outside,
        "layers": compress(layers),
        "mtp": _modules(inside[len(inner) :], metadata, dialect) if modules else None,
        "per_layer_embedding": _per_layer(outside, len(inner)),
    }
    try:
        model = ModelSpec.model_validate(data)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors())
        raise SpecError(f"{path.stem}: the file gives no valid model", because=problems) from None
    _require_same(model, checkpoint)
    model = model.model_copy(update={"native": Native.model_validate(native_of(model, checkpoint))})
    return model.model_copy(update={"notes": size_note(model, checkpoint)})


def _dialect(metadata: Metadata) -> tuple[Dialect, str]:
    family = ARCHITECTURES.get(metadata.architecture, "")
    if family == "llama" and metadata.optional("expert_count"):
        family = "mixtral"
    if family not in FAMILIES:
        if metadata.architecture == "clip":
            because = "it holds the encoder of images or sound of a model"
            raise SpecError(f"{metadata.name}: general.architecture = 'clip' is not understood", because=because)
        raise UnknownFamilyError(
            f"{metadata.name}: general.architecture = {metadata.architecture!r} is not understood",
            because=f"GGUF files of {', '.join(sorted(ARCHITECTURES))} are",
            hint="give the model by name; the file's bytes are exact all the same",
        )
    return FAMILIES[family], family


def _told(checkpoint: Checkpoint, metadata: Metadata, why: str) -> ModelSpec:
    """The model of tensors of an architecture that nobody has described. why: the reason."""
    from inferplan.models.from_tensors import Config, config_of_gguf, model_of_tensors

    tensors = [replace(tensor, shape=tensor.shape[::-1]) for tensor in checkpoint.tensors]
    name = metadata.name.lower()
    said = {"name": name, "source": str(checkpoint.path), "family": metadata.architecture}
    config = Config(config_of_gguf(metadata.fields), name)
    return model_of_tensors(Checkpoint(path=checkpoint.path, tensors=tensors), config, said, why)


def _windowed(inner: list[LayerTensors], metadata: Metadata, dialect: Dialect, family: str) -> list[Layer]:
    """The layers with their windows: the file's own pattern, else the family's rule."""
    acting = activation(Reader({}, metadata.name), dialect)
    if family == "gpt_oss":
        acting = "swiglu_limited"
    layers = [layer(block, metadata, dialect, acting) for block in inner]
    size, chunk = metadata.optional("attention.sliding_window"), metadata.optional("attention.chunk_size")
    pattern = metadata.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        if len(pattern) < len(layers):
            because = f"{len(pattern)} entries for {len(layers)} layers"
            raise SpecError(f"{metadata.name}: attention.sliding_window_pattern is not understood", because=because)
        windows = [size if slides else None for slides in pattern[: len(layers)]]
    else:
        reader = Reader({"sliding_window": size, "sliding_window_pattern": pattern}, metadata.name)
        windows = [None] * len(layers) if size is None else sliding(reader, dialect, len(layers))
    for index, (one, window) in enumerate(zip(layers, windows, strict=True)):
        if window and one.get("mixer", {}).get("kind") == "attention":
            one["mixer"]["window"] = window
        elif chunk and (index + 1) % 4:  # Llama 4: every fourth layer sees all, and has no rotary positions
            one["mixer"]["chunk"] = chunk
    return layers


def _modules(inside: list[LayerTensors], metadata: Metadata, dialect: Dialect) -> dict[str, Any]:
    """Prediction modules: blocks at the end with ``nextn`` tensors (llama.cpp keeps and does not run them)."""
    own = [{name for name in block.tensors if name.startswith("nextn.")} for block in inside]
    for block, names in zip(inside, own, strict=True):
        block.read |= names
    acting = activation(Reader({}, metadata.name), dialect)
    layers = [layer(block, metadata, dialect, acting) for block in inside]
    return {
        "layers": [layers[0]],
        "modules": len(inside),
        "norms": sum(name.endswith("norm.weight") for name in own[0]),
        "own_embedding": "nextn.embed_tokens.weight" in own[0],
        "own_head": "nextn.shared_head_head.weight" in own[0],
    }


def _per_layer(outside: dict[str, Shape], layers: int) -> dict[str, int] | None:
    table = outside.get("per_layer_token_embd.weight")
    return None if table is None else {"width": table[0] // layers, "vocab": table[1]}


def _require_same(model: ModelSpec, checkpoint: Checkpoint) -> None:
    found, expected = parameters(checkpoint.tensors), model.parameters["total"] + (model.mtp_parameters or 0)
    if found != expected:
        raise SpecError(
            f"{checkpoint.path} is not the model of its metadata",
            because=f"it stores {found:,} elements, its layers have {expected:,} parameters ({found - expected:+,})",
            hint="a part of a split file is missing, or tensors were added",
        )
