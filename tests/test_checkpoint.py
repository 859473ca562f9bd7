"""Headers of safetensors and GGUF files, and their comparison with a config."""

from __future__ import annotations

import json
import struct
import sys

import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import load_model
from inferplan.errors import InputFileError, MissingExtraError, SpecError, UnknownNameError
from inferplan.estimate.memory import Footprint
from inferplan.models.checkpoint import fetch_configs, read_folder, read_gguf, read_header
from inferplan.models.huggingface import import_path
from tests.cases import for_each

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 512,
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
SHAPES = {
    "model.embed_tokens.weight": [512, 64],
    "model.layers.0.self_attn.q_proj.weight": [64, 64],
    "model.layers.0.self_attn.k_proj.weight": [32, 64],
    "model.layers.0.self_attn.v_proj.weight": [32, 64],
    "model.layers.0.self_attn.o_proj.weight": [64, 64],
    "model.layers.0.mlp.gate_proj.weight": [96, 64],
    "model.layers.0.mlp.up_proj.weight": [96, 64],
    "model.layers.0.mlp.down_proj.weight": [64, 96],
    "model.layers.0.input_layernorm.weight": [64],
    "model.layers.0.post_attention_layernorm.weight": [64],
    "model.norm.weight": [64],
    "lm_head.weight": [512, 64],
}
BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1}


def write(path, shapes, cut=0, dtypes=None):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        dtype = (dtypes or {}).get(name, "BF16")
        size = BYTES[dtype]
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * (offset - cut))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    write(tmp_path / "model.safetensors", SHAPES)
    return tmp_path


def test_bytes_are_exact_and_agree_with_the_config(folder):
    stored = read_folder(folder)
    model = load_model(str(folder))
    assert stored.size == model.checkpoint_bytes == 2 * model.parameters["total"]
    assert stored.by_dtype == {"BF16": stored.size}
    assert stored.elements == model.parameters["total"]
    assert f"{stored.size:,} bytes" in model.notes[-1]
    assert model.made_from.trust == "checkpoint"


def test_shards_by_their_index(folder):
    names = list(SHAPES)
    files = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, part in files.items():
        write(folder / file, {name: SHAPES[name] for name in part})
    table = {name: file for file, part in files.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}), encoding="utf-8")
    assert read_folder(folder).size == 2 * load_model(str(folder)).parameters["total"]
    (folder / "b.safetensors").unlink()
    with pytest.raises(InputFileError, match=r"b\.safetensors"):
        read_folder(folder)


def test_a_folder_without_weights_is_its_config(folder):
    (folder / "model.safetensors").unlink()
    assert load_model(str(folder)).notes == []


def test_a_checkpoint_of_another_model_is_refused(folder):
    write(folder / "model.safetensors", SHAPES | {"model.layers.1.mlp.up_proj.weight": [16, 8]})
    with pytest.raises(SpecError, match=r"\+128"):
        load_model(str(folder))


def test_buffers_and_a_stored_tied_head_are_noted(folder):
    (folder / "config.json").write_text(json.dumps(CONFIG | {"tie_word_embeddings": True}), encoding="utf-8")
    buffers = {"model.layers.0.self_attn.rotary_emb.inv_freq": [2]}
    write(folder / "model.safetensors", SHAPES | buffers)
    assert "tied head" in load_model(str(folder)).notes[-1]


def stored_as(folder, dtypes, config=None):
    """The folder with a type for each tensor, by the end of its name; its size."""
    (folder / "config.json").write_text(json.dumps(CONFIG | (config or {})), encoding="utf-8")
    kinds = {name: next((kind for end, kind in dtypes.items() if end in name), "BF16") for name in SHAPES}
    write(folder / "model.safetensors", SHAPES, dtypes=kinds)
    return load_model(str(folder))


INT4 = {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}}
FP8 = {"quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}}


@for_each(
    ("dtypes", "config", "said"),
    [
        ({}, INT4, "stored as BF16 and the config says int4"),
        ({"proj": "F8_E4M3"}, {}, "stored as F8_E4M3 and the config says bf16"),
        ({"gate_proj": "F8_E4M3"}, FP8, "stored as BF16 and the config says fp8"),
    ],
)
def test_a_folder_in_other_formats_than_its_config_says_is_refused(folder, dtypes, config, said):
    with pytest.raises(SpecError, match=said):
        stored_as(folder, dtypes, config)


def test_a_wider_type_on_disk_is_noted(folder):
    notes = stored_as(folder, {"": "F32"}).notes
    assert any("stored as F32 and the config says bf16: engines load them as bf16" in note for note in notes)


def test_the_same_elements_in_other_shapes_are_refused(folder):
    """Five heads and one key, not four and two: 64 x 64 x 2 + 32 x 64 x 2 elements either way, and half the cache."""
    changed = {"num_attention_heads": 5, "num_key_value_heads": 1}
    (folder / "config.json").write_text(json.dumps(CONFIG | changed), encoding="utf-8")
    with pytest.raises(SpecError, match=r"q_proj\.weight is 64 x 64 and the config gives 80 x 64"):
        load_model(str(folder))


def test_matrices_that_are_missing_are_named(folder):
    write(folder / "model.safetensors", {name: shape for name, shape in SHAPES.items() if "k_proj" not in name})
    with pytest.raises(SpecError, match=r"self_attn\.k_proj"):
        load_model(str(folder))


@for_each("content", [b"", b"short", b"\xff" * 64, struct.pack("<Q", 4) + b"nope"])
def test_what_is_no_safetensors_file(tmp_path, content):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputFileError):
        read_header(path)


def header(text):
    return struct.pack("<Q", len(text)) + text + b"\0" * 8


ENTRY = b'"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'


@for_each(
    "text",
    [
        b"[]",
        b"{%s,%s}" % (ENTRY, ENTRY),
        b"{%s}" % ENTRY.replace(b"[2]", b"[-2]"),
        b"{%s}" % ENTRY.replace(b"[2]", b'["2"]'),
        b"{%s}" % ENTRY.replace(b"[2]", b"[3]"),
        b"{%s}" % ENTRY.replace(b"8]", b"NaN]"),
        b"{%s}" % ENTRY.replace(b"[2]", b"[" + b"9" * 5000 + b"]"),
        b"[" * 100_000,
    ],
)
def test_a_header_that_the_format_forbids(tmp_path, text):
    """https://github.com/huggingface/safetensors#format: no name twice, and ranges as long as their tensors."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(header(b"{%s}" % ENTRY))
    assert read_header(path)[0].size == 8
    path.write_bytes(header(text))
    with pytest.raises(InputFileError):
        read_header(path)


@for_each("table", [[], {"a": 1}])
def test_an_index_that_is_none(folder, table):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}), encoding="utf-8")
    with pytest.raises(InputFileError, match="index"):
        read_folder(folder)


SCALED = {"type": "yarn", "factor": 10**400}
WRONG = [
    ("rope_scaling", SCALED),
    ("rope_scaling", {"type": ["yarn"], "factor": 4.0}),
    ("vocab_size", 10**400),
    ("hidden_act", [1]),
    ("torch_dtype", {"a": 1}),
    ("tie_word_embeddings", "false"),
]


@for_each(("field", "value"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_a_field_of_a_type_that_is_none_of_its_own(folder, field, value):
    (folder / "config.json").write_text(json.dumps(CONFIG | {field: value}), encoding="utf-8")
    with pytest.raises(SpecError, match=field):
        load_model(str(folder))


def test_a_number_of_thousands_of_digits_is_no_bug(folder):
    text = json.dumps(CONFIG).replace("512", "9" * 5000)
    (folder / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(SpecError):
        load_model(str(folder))


def test_a_file_cut_short(tmp_path):
    write(tmp_path / "x.safetensors", SHAPES, cut=10)
    with pytest.raises(InputFileError, match="cut short"):
        read_header(tmp_path / "x.safetensors")


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(InputFileError):
        load_model(str(tmp_path / "config.json"))
    with pytest.raises(InputFileError):
        import_path(tmp_path)


def test_a_quantisation_beside_the_config(folder):
    quantised = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (folder / "hf_quant_config.json").write_text(json.dumps(quantised), encoding="utf-8")
    write(folder / "model.safetensors", SHAPES, dtypes={name: "F8_E4M3" for name in SHAPES if "proj" in name})
    native = load_model(str(folder)).native
    assert (native.weights, native.kv) == ("fp8", "fp8")


def test_a_gguf_file(tmp_path):
    gguf = pytest.importorskip("gguf")
    import numpy as np

    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    shapes = {"token_embd": (96, 32), "output": (96, 32), "output_norm": (32,), "blk.0.attn_norm": (32,)}
    shapes |= {"blk.0.attn_q": (32, 32), "blk.0.attn_k": (16, 32), "blk.0.attn_v": (16, 32)}
    shapes |= {"blk.0.attn_output": (32, 32), "blk.0.ffn_norm": (32,), "blk.0.ffn_gate": (64, 32)}
    shapes |= {"blk.0.ffn_up": (64, 32), "blk.0.ffn_down": (32, 64)}
    for name, shape in shapes.items():
        values = np.zeros(shape, dtype=np.float32)
        kind = gguf.GGMLQuantizationType.F32
        if len(shape) > 1:
            kind = gguf.GGMLQuantizationType.Q4_0 if name.endswith("ffn_up") else gguf.GGMLQuantizationType.Q8_0
            values = gguf.quants.quantize(values, kind)
        writer.add_tensor(f"{name}.weight", values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = load_model(str(path))
    assert model.parameters["total"] == sum(np.prod(shape) for shape in shapes.values())
    checkpoint, _ = read_gguf(path)
    matrices = model.parameters["total"] - 3 * 32
    assert checkpoint.size == matrices * 34 / 32 - 64 * 32 * 16 / 32 + 3 * 32 * 4
    deployment = assemble(Request(model=str(path), gpu="h100-sxm", engine="none"))
    assert Footprint(deployment=deployment, batch=1.0, prompt=1.0, context=1.0).weights == checkpoint.size
    assert (model.native.weights, model.native.embedding, model.native.head) == ("q8_0", "q8_0", "q8_0")


def test_a_missing_extra_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'huggingface-hub>="):
        fetch_configs("no/such-model")


def test_gguf_formats_are_those_of_the_package():
    gguf = pytest.importorskip("gguf")
    from inferplan.work.formats import FORMATS

    checked = 0
    for kind, (block, size) in gguf.GGML_QUANT_SIZES.items():
        found = FORMATS.get(kind.name.lower())
        # q8_1 is of inputs, never of a file: ggml-common.h has two halves beside 32 bytes, the package two floats
        if found and found.group > 1 and kind.name.lower() not in ("mxfp4", "nvfp4", "q8_1"):
            assert found.width == size / block, kind.name
            checked += 1
    assert checked >= 18


def test_a_folder_of_an_adapter_names_its_base(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "meta-llama/Llama-3.1-8B"}')
    with pytest.raises(InputFileError) as error:
        load_model(str(tmp_path))
    assert "adapter" in error.value.what and "meta-llama/Llama-3.1-8B" in error.value.hint


def test_weights_that_are_stored_twice_are_read_once(folder):
    write(folder / "consolidated.safetensors", SHAPES)
    assert read_folder(folder).size == 2 * load_model(str(folder)).parameters["total"]


@for_each("variable", ["HF_HUB_CACHE", "HF_HOME"])
def test_the_cache_of_the_hub_is_read_without_its_client(folder, tmp_path, monkeypatch, variable):
    """The layout that huggingface_hub documents: models--ORG--NAME/refs/main names snapshots/COMMIT."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv(variable, str(tmp_path / "cache"))
    root = tmp_path / "cache" / ("hub" if variable == "HF_HOME" else "") / "models--some--tiny-model"
    (root / "refs").mkdir(parents=True)
    (root / "snapshots" / "abc").mkdir(parents=True)
    with pytest.raises(UnknownNameError, match="not reached"):
        load_model("some/tiny-model")
    (root / "refs" / "main").write_text("abc")
    (root / "snapshots" / "abc" / "config.json").write_text(json.dumps(CONFIG))
    assert load_model("some/tiny-model").parameters == load_model(str(folder)).parameters
