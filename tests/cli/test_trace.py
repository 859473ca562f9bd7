"""``inferplan import --trace``: one clear error for what is nothing to trace; what it writes needs no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inferplan.errors import InferplanError, InputFileError, MissingExtraError, SpecError
from tests.cases import for_each
from tests.cli.test_import import run

LLAMA = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128}
LLAMA |= {"num_key_value_heads": 2, "intermediate_size": 96}
SMALL = {"model_type": "mllama_of_tomorrow"}


def written(folder: Path, fields: Any) -> str:
    path = folder / "config.json"
    path.write_text(fields if isinstance(fields, str) else json.dumps(fields), encoding="utf-8")
    return str(path)


def refused(*arguments: str) -> InferplanError:
    with pytest.raises(InferplanError) as error:
        run("import", "--trace", *arguments)
    return error.value


@for_each("package", ["torch", "transformers"])
def test_without_the_extra(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if package == "transformers":
        pytest.importorskip("torch")  # which is asked for first
    monkeypatch.setitem(sys.modules, package, None)
    error = refused(written(tmp_path, LLAMA))
    assert isinstance(error, MissingExtraError)
    assert error.render().splitlines() == [
        f"error: import --trace needs {package}",
        "hint: pip install 'torch>=2.11' 'transformers<5.24,>=5.20'",
    ]


@for_each(
    ("fields", "expected"),
    [
        ("{", "not JSON"),
        ([1, 2], "holds no config"),
        ({}, "no model_type"),
        ({"model_type": 7}, "no model_type"),
        (LLAMA | {"quantization_config": {"quant_method": "of tomorrow"}}, "quant_method"),
        (LLAMA | {"quantization_config": "fp8"}, "quantization_config = 'fp8'"),
    ],
)
def test_what_is_no_config(fields: Any, expected: str, tmp_path: Path) -> None:
    error = refused(written(tmp_path, fields))
    assert isinstance(error, SpecError)
    assert expected in error.what


@for_each("name", ["nothing.json", "folder", "model.gguf"])
def test_what_is_not_there(name: str, tmp_path: Path) -> None:
    assert isinstance(refused(str(tmp_path / name)), InputFileError)


def test_code_of_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    error = refused(written(tmp_path, SMALL | {"auto_map": {"AutoModel": "modeling.Theirs"}}))
    assert "no model_type 'mllama_of_tomorrow'" in error.what
    assert error.because == "its code comes with the checkpoint (auto_map), which is not run unasked"
    assert refused(written(tmp_path, SMALL)).because == ""


@for_each(
    "fields", [{"hidden_size": 65}, {"hidden_size": "wide"}, {"num_attention_heads": 0}, {"num_hidden_layers": -1}]
)
def test_a_config_that_transformers_cannot_build(fields: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    error = refused(written(tmp_path, LLAMA | fields))
    assert isinstance(error, SpecError)
    assert len(error.render().splitlines()) <= 3


def test_the_file_needs_neither_torch_nor_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    model = str(tmp_path / "traced.yaml")
    run("import", "--trace", written(tmp_path, LLAMA), "-o", model, "--name", "mine")
    code = "import sys\nfrom inferplan.cli import main\n"
    code += f"sys.argv = ['inferplan', 'estimate', {model!r}, '--gpu', 'h100-sxm', '--format', 'json']\n"
    code += "try:\n    main()\nexcept SystemExit:\n    pass\n"
    code += "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    record = json.loads(done.stdout)
    assert record["model_counts"]["trust"] == "traced"
    assert json.loads(run("show", model, "--format", "json"))["spec"]["basis"] == "traced"


def test_a_number_leads_back_to_its_line(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    model = tmp_path / "traced.yaml"
    run("import", "--trace", written(tmp_path, LLAMA), "-o", str(model))
    shown = run("explain", "decode.traced.self_attn.o_proj", str(model), "--gpu", "h100-sxm")
    lines = model.read_text(encoding="utf-8").splitlines()
    line = next(n for n, text in enumerate(lines, 1) if "runs: matmul, name: self_attn.o_proj" in text)
    assert f"{model}:{line}: layers.0.mixer.operators" in shown


def test_a_field_that_the_class_does_not_name_is_said(tmp_path: Path) -> None:
    """``hidden_sise`` would leave the width at the class's own 4096."""
    pytest.importorskip("transformers")
    text = run("import", "--trace", written(tmp_path, LLAMA | {"hidden_sise": 32, "torch_dtype": "float16"}))
    assert "does not name hidden_sise, which" in text
    assert "does not name" not in run("import", "--trace", written(tmp_path, LLAMA))


def test_a_refusal_says_what_would_be_read(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as error:
        run("import", written(tmp_path, SMALL))
    assert "give the folder with its tensors" in error.value.hint
