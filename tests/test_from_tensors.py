"""Models of families that nobody has described, from the tensors of folders, GGUF files and the hub; by hand."""

from __future__ import annotations

import json
import random
import struct
from math import prod
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import load_model
from inferplan.cli import cli
from inferplan.errors import InferplanError, MissingFactError, SpecError, UnknownFamilyError, UsageError
from inferplan.estimate.memory import Footprint
from inferplan.models import checkpoint
from inferplan.models.huggingface import import_hub, import_path
from inferplan.models.huggingface.emit import to_yaml
from tests.cases import for_each
from tests.hostile_headers import CONFIG, INDEX_NAME, SHAPES, safetensors, whole_gguf

UNKNOWN = {**CONFIG, "model_type": "never_heard_of", "architectures": ["NeverHeardOfForCausalLM"]}
BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "I32": 4, "U8": 1, "F16": 2, "I64": 8}
LAYER = "model.layers.0."
ATTENTION = "model.layers.0.self_attn."


def invoke(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


def stored(shapes: dict[str, Any]) -> bytes:
    """A file with these tensors, in bf16 where a type is not said."""
    found, offset = {}, 0
    for name, said in shapes.items():
        dtype, shape = said if isinstance(said, tuple) else ("BF16", said)
        end = offset + BYTES[dtype] * prod(shape)
        found[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    return safetensors(json.dumps(found), offset)


def folder(place: Path, shapes: dict[str, Any] | None = None, **fields: Any) -> Path:
    """A folder of a family that nobody has described."""
    place.mkdir(exist_ok=True)
    config = {key: value for key, value in (UNKNOWN | fields).items() if value is not None}
    (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (place / "model.safetensors").write_bytes(stored(SHAPES if shapes is None else shapes))
    return place


def kept(path: Path) -> tuple[float, float]:
    model = load_model(str(path))
    return model.kv_elements_per_token, model.kv_elements_per_token_beyond_windows


def test_an_unknown_type_weighs_its_bytes_and_keeps_its_keys_and_values(tmp_path: Path) -> None:
    """2 x 2 heads x 16 = 64 elements a token; every byte of bf16 twice an element."""
    path = folder(tmp_path / "m")
    model = load_model(str(path))
    assert model.basis == "stored"
    elements = sum(map(prod, SHAPES.values()))
    assert (model.parameters["total"], model.checkpoint_bytes) == (elements, 2 * elements)
    assert kept(path) == (64, 64)
    footprint = Footprint(deployment=assemble(Request(model=str(path), gpu="h100-sxm")), batch=1, prompt=8, context=8)
    assert (footprint.weights, footprint.kv_per_token) == (2 * elements, 2 * 64)
    again = tmp_path / "again.yaml"
    again.write_text(to_yaml(model), encoding="utf-8")
    assert load_model(str(again)) == model


def test_commands_answer_it_and_say_how_far(tmp_path: Path) -> None:
    path = folder(tmp_path / "m")
    for command in ("fit", "estimate"):
        ended = invoke(command, str(path), "--gpu", "h100-sxm")
        assert ended.exit_code == 0 and "told from its tensors" in ended.stdout, command
        assert command == "fit" or "0 of traced" in ended.stdout  # no band without a measured system of its kind
    strange = {**SHAPES, f"{LAYER}mixer.A_log": [4], f"{LAYER}mixer.conv1d.weight": [4, 1, 4]}
    path = folder(tmp_path / "state", strange)
    shown = json.loads(invoke("show", str(path), "--format", "json").stdout)
    assert shown["kv_elements_per_token"] is None and shown["state_elements_per_sequence"] is None
    assert shown["parameters"]["total"] == sum(map(prod, strange.values()))
    ended = invoke("fit", str(path), "--gpu", "h100-sxm")
    assert isinstance(ended.exception, MissingFactError) and "mixer.A_log, mixer.conv1d" in str(ended.exception)


QUANTISED = {
    "gptq": ({"qweight": ("I32", [8, 32]), "qzeros": ("I32", [1, 4]), "scales": ("F16", [1, 32])}, True),
    "awq": ({"qweight": ("I32", [64, 4]), "qzeros": ("I32", [1, 4]), "scales": ("F16", [1, 32])}, True),
    "packed": ({"weight_packed": ("I32", [32, 8]), "weight_scale": [32, 1], "weight_shape": ("I64", [2])}, True),
    "fp8": ({"weight": ("F8_E4M3", [32, 64]), "weight_scale_inv": ("F32", [1, 1])}, False),
    "nvfp4": ({"weight": ("U8", [32, 32]), "weight_scale": ("F8_E4M3", [32, 4]), "weight_scale_2": ("F32", [])}, True),
}


@for_each("name", list(QUANTISED))
def test_quantised_tensors_weigh_their_bytes_and_tell_what_is_kept(tmp_path: Path, name: str) -> None:
    """Keys and values of 32 rows each, 64 wide, in the layouts of released checkpoints."""
    tensors, packed = QUANTISED[name]
    shapes = {own: shape for own, shape in SHAPES.items() if not own.startswith((f"{ATTENTION}k", f"{ATTENTION}v"))}
    shapes |= {f"{ATTENTION}{x}_proj.{leaf}": said for x in "kv" for leaf, said in tensors.items()}
    path = folder(tmp_path / "m", shapes)
    model = load_model(str(path))
    size = sum(
        BYTES[said[0]] * prod(said[1]) if isinstance(said, tuple) else 2 * prod(said) for said in shapes.values()
    )
    assert model.checkpoint_bytes == size
    assert kept(path) == (64, 64)
    assert any("its time is not known" in note for note in model.notes)
    request = Request(model=str(path), gpu="h100-sxm", quant="int4")
    if packed:
        with pytest.raises(UsageError, match="formats of its checkpoint"):
            assemble(request)
    else:
        assemble(request)


def changed(**tensors: Any) -> dict[str, Any]:
    """The shapes of the folder with others in its attention; ``None`` for one that is not there."""
    shapes = SHAPES | {f"{ATTENTION}{name}.weight": shape for name, shape in tensors.items()}
    return {name: shape for name, shape in shapes.items() if shape is not None}


@for_each(
    ("shapes", "fields", "expected"),
    [
        (changed(), {"layer_types": ["sliding_attention"], "sliding_window": 8}, (64, 0)),
        (changed(), {"layer_types": ["full_attention"], "sliding_window": 8}, (64, 64)),
        (changed(), {"sliding_window": 8, "use_sliding_window": False}, (64, 64)),
        (changed(q_proj=None, k_proj=None, v_proj=None, qkv_proj=[128, 64]), {}, (64, 64)),
        (changed(k_proj=None, v_proj=None, kv_a_proj_with_mqa=[40, 64], kv_b_proj=[128, 32]), {}, (40, 40)),
        (changed(v_proj=[48, 64]), {}, (80, 80)),  # values wider than keys
        (changed(), {"num_key_value_heads": 1}, (64, 64)),  # tensors say more than a config
        (changed(), {"sliding_window": 8}, "sliding_window = 8"),
        (changed(), {"layer_types": ["linear_attention"]}, "linear_attention"),
        (changed(), {"num_kv_shared_layers": 1}, "num_kv_shared_layers"),
        (changed(), {"architectures": ["NeverHeardOfModel"]}, "nothing says that it generates"),
        (changed(v_proj=None), {}, "not told by its attention"),
        (changed(c_proj=[64, 64]), {}, "not told by its attention"),
        (changed(g_proj=[64, 64]), {}, "g_proj"),
    ],
)
def test_what_is_kept_is_told_by_names_or_refused_by_name(
    tmp_path: Path, shapes: dict[str, Any], fields: dict[str, Any], expected: Any
) -> None:
    path = folder(tmp_path / "m", shapes, **fields)
    if not isinstance(expected, str):
        assert kept(path) == expected
        return
    with pytest.raises(MissingFactError) as error:
        kept(path)
    assert expected in error.value.because


def test_experts_that_are_numbered_are_active_by_the_number_that_a_config_says(tmp_path: Path) -> None:
    """8 experts of 3 x 64 x 32, of which a token reads 2."""
    shapes = {name: shape for name, shape in SHAPES.items() if ".mlp." not in name}
    for index in range(8):
        names = {"gate": [32, 64], "up": [32, 64], "down": [64, 32]}
        shapes |= {f"{LAYER}mlp.experts.{index}.{name}_proj.weight": shape for name, shape in names.items()}
    shapes[f"{LAYER}mlp.gate.weight"] = [8, 64]
    model = load_model(str(folder(tmp_path / "m", shapes, num_experts_per_tok=2)))
    total = sum(map(prod, shapes.values()))
    assert model.parameters["total"] == total
    assert model.parameters["active"] == total - 6 * 3 * 64 * 32
    model = load_model(str(folder(tmp_path / "n", shapes)))
    assert "active" not in model.parameters
    assert any("the number of experts per token" in note for note in model.notes)


def test_shards_towers_and_prediction_modules_are_counted_apart(tmp_path: Path) -> None:
    beside = {"vision_tower.blocks.0.attn.qkv.weight": ("F32", [96, 32]), "visual.merger.weight": [64, 32]}
    module = {name.replace("layers.0", "layers.1"): shape for name, shape in SHAPES.items() if "layers.0" in name}
    path = folder(tmp_path / "m", {}, num_nextn_predict_layers=1)
    parts = {"a.safetensors": SHAPES | beside, "b.safetensors": module}
    for file, shapes in parts.items():
        (path / file).write_bytes(stored(shapes))
    (path / "model.safetensors").unlink()
    table = {name: file for file, shapes in parts.items() for name in shapes}
    (path / INDEX_NAME).write_text(json.dumps({"weight_map": table}), encoding="utf-8")
    model = load_model(str(path))
    towers = {tower.name: tower.parameters for tower in model.towers}
    later = sum(map(prod, module.values()))
    assert towers == {"model.layers": later, "vision_tower": 96 * 32, "visual": 64 * 32}
    assert model.checkpoint_bytes == 2 * (sum(map(prod, SHAPES.values())) + later + 64 * 32) + 4 * 96 * 32
    assert kept(path) == (64, 64)


def test_a_folder_of_tensors_alone_and_one_that_is_not_whole(tmp_path: Path) -> None:
    path = folder(tmp_path / "m")
    (path / "config.json").unlink()
    model = load_model(str(path))
    assert kept(path) == (64, 64) and any("no config says" in note for note in model.notes)
    lost = {name.replace("layers.0", "layers.3"): shape for name, shape in SHAPES.items()}
    with pytest.raises(SpecError, match="layer 0 is not stored"):
        load_model(str(folder(tmp_path / "lost", lost)))
    without = {name: shape for name, shape in SHAPES.items() if "embed" not in name and "head" not in name}
    with pytest.raises(SpecError, match="embedding"):
        load_model(str(folder(tmp_path / "bare", without)))
    alone = tmp_path / "config.json"
    alone.write_text(json.dumps(UNKNOWN), encoding="utf-8")
    with pytest.raises(UnknownFamilyError, match="never_heard_of"):
        load_model(str(alone))


@for_each(
    ("field", "said", "told"),
    [
        ("vocab_size", 500, 512),
        ("hidden_size", 1000, 64),
        ("num_hidden_layers", 2, 1),
        ("num_key_value_heads", 4, 2),
        ("num_attention_heads", 8, 4),
    ],
)
def test_tensors_hold_against_their_config_with_a_line(tmp_path: Path, field: str, said: int, told: int) -> None:
    """The embedding is 512 x 64; one layer; queries of 64, keys of 32 by heads of 16."""
    path = folder(tmp_path / "m", **{field: said})
    model = load_model(str(path))
    line = f"{field} is {told}, not {said}"
    assert [line in note for note in model.notes].count(True) == 1
    assert any(line in text for text in invoke("show", str(path)).output.splitlines())
    assert (model.vocab, model.d_model, len(model.sequence)) == (512, 64, 1)
    assert kept(path) == (64, 64)


def test_heads_are_those_of_a_norm_of_queries_and_not_of_the_config(tmp_path: Path) -> None:
    """A norm of 32 of the 64 columns: two heads; the config says four of 16."""
    normed = SHAPES | {f"{ATTENTION}q_norm.weight": [32], f"{ATTENTION}k_norm.weight": [32]}
    model = load_model(str(folder(tmp_path / "m", normed)))
    line = next(note for note in model.notes if "contradicts" in note)
    assert all(said in line for said in ("num_attention_heads is 2, not 4", "head_dim is 32, not 16"))


def test_a_gguf_file_of_an_unknown_architecture(tmp_path: Path) -> None:
    """As a llama the same file keeps 64 elements a token, too."""
    path = tmp_path / "m.gguf"
    path.write_bytes(whole_gguf())
    known = load_model(str(path))
    path.write_bytes(whole_gguf().replace(b"llama", b"lamma"))
    told = load_model(str(path))
    assert (known.basis, told.basis) == ("described", "stored")
    assert told.parameters == known.parameters
    assert told.checkpoint_bytes == known.checkpoint_bytes == 4 * sum(map(prod, SHAPES.values()))
    assert told.kv_elements_per_token == known.kv_elements_per_token == 64
    assert told.max_context == known.max_context == 128


def test_a_hub_id_is_told_by_ranges_of_its_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file of 4 GB the first megabyte is read, and no further one."""
    hub = pytest.importorskip("huggingface_hub")
    big = {**SHAPES, "lm_head.weight": [512, 64], "model.extra.weight": [2**21, 2**10]}
    own = folder(tmp_path / "m", SHAPES)
    header = stored({name: shape for name, shape in big.items() if name != "model.extra.weight"})
    length = struct.unpack("<Q", header[:8])[0]
    words = json.loads(header[8 : 8 + length])
    end = max(entry["data_offsets"][1] for entry in words.values())
    words["model.extra.weight"] = {"dtype": "BF16", "shape": [2**21, 2**10], "data_offsets": [end, end + 2**32]}
    content = json.dumps(words).encode()
    with (own / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(content)) + content)
        file.truncate(8 + len(content) + end + 2**32)
    read: list[int] = []

    class Remote:
        """A file that counts what is asked of it."""

        def __init__(self, path: Path) -> None:
            self.file, self.size = path.open("rb"), path.stat().st_size

        def __enter__(self) -> Remote:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def seek(self, place: int) -> None:
            self.file.seek(place)

        def read(self, count: int) -> bytes:
            read.append(count)
            return self.file.read(count)

    class Hub:
        def open(self, name: str, mode: str, block_size: int) -> Remote:
            return Remote(own / name.removeprefix("a/m@main/"))

    configs = tmp_path / "configs"
    configs.mkdir()
    (configs / "config.json").write_bytes((own / "config.json").read_bytes())
    monkeypatch.setattr(hub, "HfFileSystem", Hub)
    monkeypatch.setattr("inferplan.models.huggingface.fetch_configs", lambda hub_id: configs)
    model = import_hub("a/m").model
    assert model.checkpoint_bytes == end + 2**32 and sum(read) < 2**21
    assert model.kv_elements_per_token == 64
    (own / "model.safetensors").unlink()
    assert checkpoint.fetch_headers("a/m") is None
    with pytest.raises(InferplanError, match="never_heard_of"):
        import_hub("a/m")


def test_a_described_family_is_still_compared_with_its_tensors(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", SHAPES | {"model.layers.0.mlp.extra.weight": [3]}, model_type="llama")
    with pytest.raises(SpecError, match="not the model of its config"):
        import_path(path)


def test_no_shapes_of_known_names_end_otherwise_than_in_an_answer_or_one_error(tmp_path: Path) -> None:
    """300 drawn folders: sizes of 0 to 8, one to four axes, names of all kinds, configs that fit or do not."""
    mixer = ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "kv_a_proj_with_mqa", "q_norm", "k_norm", "gate_proj")
    feed = ("gate_proj", "down_proj", "gate", "experts.0.up_proj", "experts.1.up_proj", "experts.gate_up_proj")
    names = [*(f"self_attn.{leaf}" for leaf in mixer), *(f"mlp.{leaf}" for leaf in feed)]
    names += ["input_layernorm", "self_attn.dense", "self_attn.c_proj", "ffn_down_exps", "mixer.D"]
    fields = {"hidden_size": 8, "num_attention_heads": 2, "head_dim": 4, "num_experts_per_tok": 2, "sliding_window": 4}
    answered = 0
    for seed in range(300):
        draw = random.Random(seed)
        shapes = {"model.embed_tokens.weight": [draw.choice([16, 16, 16, 0]), draw.choice([8, 8, 8, 0])]}
        for name in draw.sample(names, draw.randint(1, 5)):
            shape = [draw.choice([0, 1, 4, 8, 8, 8, 16]) for _ in range(draw.choice([1, 2, 2, 2, 2, 3, 4]))]
            shapes[f"{LAYER}{name}.weight"] = (draw.choice(["BF16", "BF16", "BF16", "F8_E4M3", "I32"]), shape)
        said = {name: draw.choice([value, value, None, None, None, 3]) for name, value in fields.items()}
        path = folder(tmp_path / "m", shapes, **said | {"intermediate_size": None})
        try:
            model = load_model(str(path))
            Footprint(deployment=assemble(Request(model=str(path), gpu="h100-sxm")), batch=1, prompt=8, context=8)
            assert model.kv_elements_per_token >= 0
            answered += 1
        except InferplanError as error:
            assert error.exit_code in (2, 3), error
    assert answered > 5, answered
