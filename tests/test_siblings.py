"""Quantised siblings of models on file, against the sizes of their releases."""

from __future__ import annotations

import sys

import pytest

from inferplan.catalog.files import load_model
from inferplan.errors import UnknownNameError
from tests.cases import for_each


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))


@for_each(
    ("name", "gigabytes"),
    [  # safetensors of the releases, as the hub lists them
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", 5.57),
        ("Qwen/Qwen3-14B-FP8", 16.3),
        ("hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4", 5.73),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic", 9.08),
        ("mlx-community/Qwen2.5-7B-Instruct-4bit", 4.28),
    ],
)
def test_a_sibling_is_as_large_as_its_release(name: str, gigabytes: float) -> None:
    model = load_model(name)
    assert model.checkpoint_bytes / 1e9 == pytest.approx(gigabytes, rel=0.003)
    assert model.made_from.trust == "name"


@for_each("name", ["sgl-project/DeepSeek-V4-Pro-FP8", "DeepSeek-V4-Pro-FP8"])
def test_sglangs_repackages_are_blocks_throughout(name: str) -> None:
    """As the config of its V4-Flash-FP8 says: 291B with the prediction module, in files of about 294 GB."""
    assert load_model(name).native == load_model("deepseek-v4-flash-fp8").native
    flash = load_model("deepseek-v4-flash-fp8")
    assert round((flash.parameters["total"] + flash.mtp_parameters) / 1e9) == 291
    assert flash.checkpoint_bytes + flash.mtp_parameters == pytest.approx(294e9, rel=0.01)


@for_each("name", ["someone/a-model-of-their-own-awq", "qwen2.5-7b-instruct-int9", "some/llama-3.1-8b-fp8"])
def test_a_name_that_says_no_layout_is_unknown(name: str) -> None:
    with pytest.raises(UnknownNameError):
        load_model(name)


def test_emit_takes_the_name_that_was_typed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from inferplan.cli import main

    monkeypatch.setattr(sys, "argv", ["inferplan", "emit", "vllm", "Qwen/Qwen2.5-7B-Instruct-AWQ", "--gpu", "l4"])
    main()
    assert "vllm serve Qwen/Qwen2.5-7B-Instruct-AWQ" in capsys.readouterr().out
