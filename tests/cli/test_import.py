"""``inferplan import`` and ``formats``: any config, folder or GGUF file becomes a YAML; errors are exit codes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from inferplan.catalog import files as catalog
from inferplan.cli import cli
from inferplan.errors import InferplanError
from inferplan.models.huggingface.emit import to_yaml
from inferplan.models.spec import ModelSpec
from tests.cases import for_each

CONFIG = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128}
CONFIG |= {"num_key_value_heads": 2, "intermediate_size": 96, "rope_theta": 1e6, "eos_token_id": 2}


def run(*arguments: str) -> str:
    """What a command puts on stdout; the error of a command that fails is raised."""
    result = CliRunner().invoke(cli, arguments, catch_exceptions=True)
    if result.exception is not None:
        raise result.exception
    return result.stdout


def code(*arguments: str) -> int:
    """The exit code that ``main`` gives."""
    try:
        run(*arguments)
    except InferplanError as error:
        return error.exit_code
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "Any-Name_1.json"
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    return path


def test_a_config_of_any_name_becomes_a_yaml_that_loads(config: Path, tmp_path: Path) -> None:
    text = run("import", str(config))
    target = tmp_path / "model.yaml"
    assert run("import", str(config), "-o", str(target), "--name", "mine") == ""
    written = catalog.load_model(str(target))
    assert written == ModelSpec.model_validate(yaml.safe_load(text)).model_copy(update={"name": "mine"})
    shown = json.loads(run("show", str(config), "--format", "json"))
    assert shown["parameters"] == written.parameters
    assert json.loads(run("estimate", str(config), "--gpu", "h100-sxm", "--format", "json"))


def test_verbose_lists_what_does_not_matter(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(args=["import", str(config), "--verbose"], standalone_mode=False)
    out, err = capsys.readouterr()
    assert "eos_token_id, " in err
    assert "rope_theta" in err
    assert "hidden_size" not in err
    assert yaml.safe_load(out)["d_model"] == 64


def test_a_folder_with_a_quantisation_beside_it(config: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tiny-nvfp4"
    folder.mkdir()
    (folder / "config.json").write_text(config.read_text(encoding="utf-8"), encoding="utf-8")
    beside = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (folder / "hf_quant_config.json").write_text(json.dumps(beside), encoding="utf-8")
    data = yaml.safe_load(run("import", str(folder)))
    assert data["native"] == {"weights": "nvfp4", "activations": "nvfp4", "kv": "fp8"}
    assert data["name"] == "tiny-nvfp4"


@for_each(
    ("content", "expected"),
    [
        ("not json", 2),
        ("[1, 2]", 2),
        (json.dumps(CONFIG | {"mystery": 3}), 2),
        (json.dumps(CONFIG | {"model_type": "perceiver"}), 2),
        (json.dumps({"hidden_size": 64}), 2),
    ],
)
def test_a_config_that_cannot_be_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, expected: int
) -> None:
    """By the tables: transformers, which may read the third (tests/oracle/test_readings.py), is not there."""
    monkeypatch.setattr("inferplan.catalog.readings.find_spec", lambda name: None)
    path = tmp_path / "config.json"
    path.write_text(content, encoding="utf-8")
    assert code("import", str(path)) == expected
    assert code("show", str(path)) == expected


def test_what_is_not_there_or_no_model(tmp_path: Path) -> None:
    assert code("import", str(tmp_path / "absent.json")) == 4
    assert code("import", str(tmp_path)) == 4
    assert code("import", "llama-3.1-8b") == 2
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    assert code("import", str(broken)) == 4
    assert code("import", str(tmp_path / "absent.gguf")) == 4


@cache
def load(name: str) -> ModelSpec:
    return catalog.load_model(name)


@for_each("name", catalog.names("models"))
def test_every_model_survives_its_own_yaml(name: str) -> None:
    assert ModelSpec.model_validate(yaml.safe_load(to_yaml(load(name)))) == load(name)


def test_formats_are_listed_with_their_width() -> None:
    records = {entry["name"]: entry for entry in json.loads(run("formats", "--format", "json"))["formats"]}
    assert records["nvfp4"]["bits_per_element"] == 4.5
    assert records["q6_k"]["bits_per_element"] == 6.5625
    assert "q4_k_m" in run("formats")


def test_image_tokens_are_prompt_tokens() -> None:
    whole = ["estimate", "qwen3-vl-2b", "--gpu", "h100-sxm", "--format", "json"]
    assert run(*whole, "--prompt", "1024") == run(*whole, "--prompt", "256", "--image-tokens", "768")
