"""GGUF files of models that transformers builds: tensors under llama.cpp's names, by the map of its own package.

What convert_hf_to_gguf.py does beside renaming is done here too: experts are split, biases and experts stacked, latent
keys and values taken apart; metadata are the keys that it writes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferplan.catalog.files import load_model
from inferplan.errors import InputFileError, SpecError
from tests.cases import for_each
from tests.oracle.zoo import sample

gguf = pytest.importorskip("gguf")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
SMALL |= {"intermediate_size": 96, "vocab_size": 200, "max_position_embeddings": 128, "head_dim": 16}
ROUTED = {
    "moe_intermediate_size": 32,
    "num_experts_per_tok": 2,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
}
DEEP = ROUTED | {
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "num_nextn_predict_layers": 0,
}
LATENT = {"kv_lora_rank": 32, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16}
DELTA |= {"full_attention_interval": 4, "layer_types": None}
SSM = {"ssm.state_size": 16, "ssm.group_count": 2, "ssm.time_step_rank": 4, "ssm.inner_size": 64, "ssm.conv_kernel": 4}
SHARED = {"shared_expert_intermediate_size": 48}
INDEX = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 8}
PLAIN = {"num_key_value_heads": None}
STATE = {"ssm.state_size": 8, "ssm.inner_size": 128, "ssm.conv_kernel": 4}

# llama.cpp's architecture, transformers' type, fields beside SMALL, metadata beside those of every file
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {}, {}),
    "mistral3": ("ministral3", {}, {}),
    "qwen2": ("qwen2", {}, {}),
    "qwen3": ("qwen3", {"tie_word_embeddings": True}, {}),
    "qwen3moe": ("qwen3_moe", ROUTED, {"expert_used_count": 2}),
    "qwen2moe": ("qwen2_moe", ROUTED | SHARED, {"expert_used_count": 2}),
    "gemma": ("gemma", {}, {}),
    "gemma2": ("gemma2", {"sliding_window": 32}, {"attention.sliding_window": 32}),
    "gemma3": ("gemma3_text", {"sliding_window": 32}, {"attention.sliding_window": 32}),
    "phi3": ("phi3", {"pad_token_id": 0}, {}),
    "starcoder2": ("starcoder2", {}, {}),
    "olmo2": ("olmo2", {}, {}),
    "olmoe": ("olmoe", ROUTED | {"intermediate_size": 32}, {"expert_used_count": 2}),
    "command-r": ("cohere", {}, {}),
    "cohere2": ("cohere2", {"sliding_window": 32}, {"attention.sliding_window": 32}),
    "nemotron": ("nemotron", {}, {}),
    "granite": ("granite", {}, {}),
    "glm4": ("glm4", {"pad_token_id": 0, "attention_bias": True}, {}),
    "glm4moe": ("glm4_moe", DEEP | {"use_qk_norm": True, "attention_bias": True}, {"expert_used_count": 2}),
    "exaone4": ("exaone4", {"sliding_window": 32}, {"attention.sliding_window": 32}),
    "smollm3": ("smollm3", {"pad_token_id": 0}, {}),
    "seed_oss": ("seed_oss", {}, {}),
    "ernie4_5": ("ernie4_5", {}, {}),
    "arcee": ("arcee", {}, {}),
    "minimax-m2": ("minimax_m2", ROUTED | {"intermediate_size": 32}, {"expert_used_count": 2}),
    "gpt-oss": ("gpt_oss", ROUTED | {"sliding_window": 32}, {"expert_used_count": 2, "attention.sliding_window": 32}),
    "deepseek2": (
        "deepseek_v3",
        DEEP | LATENT | {"num_key_value_heads": 4, "head_dim": None},
        {"expert_used_count": 2},
    ),
    "qwen3next": ("qwen3_next", ROUTED | SHARED | DELTA, SSM | {"expert_used_count": 2}),
    "qwen35": ("qwen3_5_text", DELTA, SSM),
    "qwen35moe": ("qwen3_5_moe_text", ROUTED | SHARED | DELTA, SSM | {"expert_used_count": 2}),
    "dots1": (
        "dots1",
        DEEP | {"pad_token_id": 0, "num_key_value_heads": 4, "sliding_window": None, "max_window_layers": 4},
        {"expert_used_count": 2},
    ),
    "glm-dsa": (
        "glm_moe_dsa",
        DEEP | LATENT | INDEX | {"num_key_value_heads": 4, "head_dim": None},
        {"expert_used_count": 2, "attention.indexer.top_k": 8},
    ),
    "llama4": (
        "llama4_text",
        ROUTED
        | {"intermediate_size_mlp": 96, "attention_chunk_size": 32, "moe_layers": [1, 3], "intermediate_size": 48},
        {"expert_used_count": 2, "attention.chunk_size": 32},
    ),
    "falcon-h1": (
        "falcon_h1",
        {
            "mamba_d_ssm": 64,
            "mamba_n_heads": 4,
            "mamba_d_head": 16,
            "mamba_d_state": 8,
            "mamba_n_groups": 1,
            "mamba_d_conv": 4,
        },
        STATE | {"ssm.time_step_rank": 4, "ssm.inner_size": 64},
    ),
    "phi2": ("phi", PLAIN, {}),
    "olmo": ("olmo", PLAIN, {}),
    "stablelm": ("stablelm", {"num_key_value_heads": 4}, {}),
    "minicpm3": ("minicpm3", LATENT | {"num_key_value_heads": 4, "head_dim": None}, {}),
    "hunyuan-dense": ("hunyuan_v1_dense", {"pad_token_id": 0}, {}),
    "gpt2": ("gpt2", PLAIN, {}),
    "bloom": ("bloom", PLAIN, {}),
    "gptneox": ("gpt_neox", PLAIN, {"use_parallel_residual": True}),
    "mamba": ("mamba", {"state_size": 8, "time_step_rank": 6}, STATE | {"ssm.time_step_rank": 6}),
    "mamba2": (
        "mamba2",
        {"num_heads": 8, "head_dim": 16, "state_size": 8, "n_groups": 2},
        STATE | {"ssm.time_step_rank": 8, "ssm.group_count": 2},
    ),
}


def built(kind: str, fields: dict[str, Any]) -> Any:
    config = transformers.CONFIG_MAPPING[kind](**{k: v for k, v in (SMALL | fields).items() if v is not None})
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def converted(model: Any, arch: str) -> dict[str, tuple[int, ...]]:
    """Every parameter under llama.cpp's name, with the shape that the converter writes."""
    number = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == arch)
    layers = model.config.num_hidden_layers
    names = gguf.get_tensor_name_map(number, layers)
    found: dict[str, tuple[int, ...]] = {}
    for name, parameter in model.named_parameters():
        shape = tuple(parameter.shape)
        for new, size in taken_apart(name, shape, arch):
            stem, dot, ending = new.rpartition(".")
            if ending not in ("weight", "bias"):
                stem, dot, ending = new, "", ""
            target = names.get_name(new) or names.get_name(stem)
            assert target is not None, (arch, name, new)
            found[f"{target}{dot}{ending}" if "." not in ending else target] = size
    return found


def taken_apart(name: str, shape: tuple[int, ...], arch: str) -> list[tuple[str, tuple[int, ...]]]:
    """What becomes of one tensor: itself, or the parts that the converter makes of it."""
    name = name.removeprefix("transformer.") if arch == "bloom" else name
    place = re.match(r"(.*layers\.\d+)\.(.*)", name)
    root, inner = (place[1], place[2]) if place else ("", name)
    experts = re.fullmatch(r"(mlp|feed_forward|block_sparse_moe)\.experts\.(gate_up_proj|down_proj)(_bias)?", inner)
    if experts:
        base, ending = f"{root}.mlp.experts", ".bias" if experts[3] else ".weight"
        turned = shape if experts[3] or arch not in ("gpt-oss", "llama4") else (shape[0], shape[2], shape[1])
        if experts[2] == "down_proj":
            return [(f"{base}.down_proj{ending}", turned)]
        half = (turned[0], turned[1] // 2, *turned[2:])
        return [(f"{base}.gate_proj{ending}", half), (f"{base}.up_proj{ending}", half)]
    if inner.endswith("kv_b_proj.weight") and arch != "minicpm3":  # 4 heads of 16 + 16 over a latent of 32
        return [(f"{root}.self_attn.k_b_proj.weight", (4, 32, 16)), (f"{root}.self_attn.v_b_proj.weight", (4, 16, 32))]
    if inner.endswith("e_score_correction_bias"):
        return []
    if arch == "gpt2" and len(shape) == 2 and re.search(r"c_(attn|proj|fc)", name):
        return [(name, shape[::-1])]
    if inner.endswith("conv1d.weight"):
        return [(name, (shape[0], shape[2]))]
    if inner.endswith("sinks"):
        return [(f"{name}.weight", shape)]
    if inner.endswith("dt_bias"):
        return [(f"{root}.{inner.removesuffix('dt_bias')}dt_proj.bias", shape)]
    return [(name, shape)]


WIDE = re.compile(r"norm|bias|conv1d|gate_inp|ssm_[ad]$|sinks")
"""Tensors that llama.cpp keeps in fp32, as it does every vector."""


def write(
    path: Path,
    arch: str,
    tensors: dict[str, tuple[int, ...]],
    model: Any,
    extra: dict[str, Any],
    matrices: Any = gguf.GGMLQuantizationType.F32,
) -> int:
    """A file as llama.cpp writes one: vectors in fp32, matrices in a type, or in fp16 where its blocks do not divide
    the rows. Its bytes of tensors, by the block sizes of the package."""
    config, types, total = model.config, gguf.GGMLQuantizationType, 0
    writer = gguf.GGUFWriter(str(path), arch)
    fields = {
        "context_length": 128,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": getattr(config, "num_key_value_heads", None) or 4,
    }
    for key, value in (fields | extra).items():
        adds = {bool: writer.add_bool, str: writer.add_string, float: writer.add_float32, list: writer.add_array}
        adds.get(type(value), writer.add_uint32)(f"{arch}.{key}", value)
    for name, shape in tensors.items():
        whole = shape[-1] % gguf.GGML_QUANT_SIZES[matrices][0] == 0
        kind = types.F32 if len(shape) == 1 or WIDE.search(name) else matrices if whole else types.F16
        block, size = gguf.GGML_QUANT_SIZES[kind]
        data = np.zeros((*shape[:-1], shape[-1] // block * size), dtype=np.uint8)
        writer.add_tensor(name, data, raw_dtype=kind)
        total += data.size
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return total


def cached(model: Any, tokens: int) -> int:
    """Elements of the cache after so many tokens of one sequence."""
    out = model(torch.zeros((1, tokens), dtype=torch.long, device="meta"), use_cache=True)
    cache = getattr(out, "past_key_values", None)
    layers = getattr(cache, "layers", None) or []
    return sum(
        tensor.numel()
        for layer in layers
        for tensor in (getattr(layer, "keys", None), getattr(layer, "values", None))
        if tensor is not None
    )


@for_each("arch", sample(CASES))
def test_a_file_of_an_architecture(arch: str, tmp_path: Path) -> None:
    kind, fields, extra = CASES[arch]
    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip("not in this transformers")
    model = built(kind, fields)
    tensors = converted(model, arch)
    write(tmp_path / "tiny.gguf", arch, tensors, model, extra)
    found = load_model(str(tmp_path / "tiny.gguf"))
    assert found.parameters["total"] == sum(parameter.numel() for parameter in model.parameters())
    assert found.checkpoint_bytes == 4 * found.parameters["total"]
    if arch in ("deepseek2", "glm-dsa", "minicpm3"):  # the latent and the rotary key, and an indexer's key, of 4 layers
        assert found.kv_elements_per_token == 4 * (32 + 8 + (16 if arch == "glm-dsa" else 0))
    elif not arch.startswith("mamba"):
        assert found.kv_elements_per_token == cached(model, 9) - cached(model, 8)


def tiny(
    path: Path, arch: str = "llama", extra: dict[str, Any] | None = None, **changes: tuple[int, ...] | None
) -> Path:
    """A file of a small Llama; ``changes`` adds tensors, or takes them out, ``extra`` adds metadata."""
    model = built("llama", {})
    tensors = converted(model, "llama") | {name: shape for name, shape in changes.items() if shape}
    write(path, arch, {k: v for k, v in tensors.items() if changes.get(k, v)}, model, extra or {})
    return path


@for_each(
    ("changes", "said"),
    [
        ({"blk.1.attn_new.weight": (64, 64)}, "attn_new.weight (blk.1)"),
        ({"blk.1.ffn_up.weight": None}, "ffn_gate.weight"),
        ({"blk.1.attn_q.weight": None}, "blk.1.attn_q.weight"),
        ({"token_embd.weight": None}, "no token_embd.weight"),
        ({"other.weight": (8, 8)}, "other.weight"),
        ({"token_embd.weight": (64,)}, "no token_embd.weight of rows"),
        ({"blk.1.attn_q.weight": (64,)}, "the tensors of blk.1"),
        ({"blk.9.attn_norm.weight": (64,)}, "no blk."),
        ({"extra": {"block_count": 9}}, "block_count is 9"),
        ({"extra": {"attention.head_count": 0}}, "the tensors of blk.0"),
        ({"extra": {"context_length": "a"}}, "llama.context_length = 'a'"),
        ({"extra": {"attention.head_count": float("nan")}}, "llama.attention.head_count = nan"),
        ({"extra": {"nextn_predict_layers": 99}}, "nextn_predict_layers"),
        (
            {"extra": {"attention.sliding_window": 8, "attention.sliding_window_pattern": [True]}},
            "1 entries",
        ),
    ],
)
def test_what_a_file_lacks_or_adds_is_named(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as error:
        load_model(str(tiny(tmp_path / "t.gguf", **changes)))
    assert said in str(error.value)


def test_an_architecture_that_is_not_known(tmp_path: Path) -> None:
    """Its tensors tell it; an encoder of images is no model."""
    told, known = (load_model(str(tiny(tmp_path / f"{arch}.gguf", arch))) for arch in ("wavtokenizer-dec", "llama"))
    assert (told.basis, told.parameters, told.checkpoint_bytes) == ("stored", known.parameters, known.checkpoint_bytes)
    assert told.kv_elements_per_token == known.kv_elements_per_token
    assert "wavtokenizer-dec" in told.notes[0]
    with pytest.raises(SpecError, match="encoder of images"):
        load_model(str(tiny(tmp_path / "clip.gguf", "clip")))


def test_a_type_that_is_not_known(tmp_path: Path) -> None:
    """A ternary type is 1.6875 bits (54 bytes for 256 weights); an integer type is no weight's."""
    from inferplan.work.formats import FORMATS

    assert FORMATS["tq1_0"].width * 256 == 54 and FORMATS["tq2_0"].width * 256 == 66
    model = built("llama", {})
    path = tmp_path / "t.gguf"
    write(path, "llama", converted(model, "llama"), model, {})
    reader = gguf.GGUFReader(str(path), "r+")
    tensor = next(t for t in reader.tensors if t.name == "blk.0.attn_q.weight")
    kind = next(
        part
        for part in tensor.field.parts
        if part.dtype == np.uint32 and part.size == 1 and part is tensor.field.parts[-2]
    )
    kind[0] = int(gguf.GGMLQuantizationType.I32)
    with pytest.raises(SpecError, match="i32, which is not understood"):
        load_model(str(path))


@for_each("left", [0, 3, 4, 24, 400, 1000, -200 * 64 * 4, -1])
def test_a_file_cut_short(left: int, tmp_path: Path) -> None:
    """Within the magic, the metadata, the table of tensors, a tensor: one error that says so."""
    path = tiny(tmp_path / "t.gguf")
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(InputFileError, match="cut short"):
        load_model(str(path))


def stored(path: Path, arch: str, kind: str) -> tuple[int, int]:
    """A file with its matrices in ``kind``: parameters, and bytes by the block sizes of llama.cpp's package."""
    name, fields, extra = CASES[arch]
    model = built(name, fields)
    total = write(path, arch, converted(model, arch), model, extra, gguf.GGMLQuantizationType[kind])
    return sum(parameter.numel() for parameter in model.parameters()), total


@for_each("kind", ["BF16", "Q8_0", "Q4_0", "NVFP4", "MXFP4"])
@for_each(
    "arch",
    [
        *("llama", "qwen2", "qwen3", "qwen3moe", "gemma", "gemma2", "phi3", "mamba2"),
        *("gpt-oss", "gemma3", "qwen35", "qwen35moe", "glm4moe", "phi2"),
    ],
)
def test_bytes_of_a_file_are_those_of_its_blocks(arch: str, kind: str, tmp_path: Path) -> None:
    """The final norm and biases are fp32 whatever the matrices are."""
    path = tmp_path / "tiny.gguf"
    parameters, total = stored(path, arch, kind)
    found = load_model(str(path))
    assert (found.parameters["total"], found.checkpoint_bytes) == (parameters, total)


@for_each("kind", ["TQ1_0", "TQ2_0", "Q4_K", "IQ3_XXS"])
def test_blocks_of_256(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CASES, "llama", ("llama", {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}, {}))
    path = tmp_path / "tiny.gguf"
    parameters, total = stored(path, "llama", kind)
    found = load_model(str(path))
    assert (found.parameters["total"], found.checkpoint_bytes) == (parameters, total)


def test_the_parts_of_a_split_file_are_one_model(tmp_path: Path) -> None:
    """llama-gguf-split: metadata in every part, tensors divided, ``-00001-of-00002`` in the names."""
    model = built("llama", {})
    tensors = list(converted(model, "llama").items())
    for number, part in ((1, tensors[:9]), (2, tensors[9:])):
        path = tmp_path / f"big-0000{number}-of-00002.gguf"
        write(path, "llama", dict(part), model, {})
    found = load_model(str(tmp_path / "big-00001-of-00002.gguf"))
    assert found.parameters["total"] == sum(parameter.numel() for parameter in model.parameters())
    (tmp_path / "big-00002-of-00002.gguf").unlink()
    with pytest.raises(InputFileError, match=r"big-00002-of-00002\.gguf"):
        load_model(str(tmp_path / "big-00001-of-00002.gguf"))
