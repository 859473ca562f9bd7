"""Images on the command line: every command says what it does not count, and refuses what it cannot take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cases import for_each
from tests.cli.conftest import Run

IMAGES = ("--images", "2", "--image-size", "640x480")
QWEN = ("qwen3-vl-8b", "--gpu", "h100-sxm")
NOTE = "the tower of vision_config (somebody) is not counted"


@pytest.fixture
def uncounted(tmp_path: Path) -> str:
    """A model beside a tower of a kind that nobody knows."""
    path = tmp_path / "exa.json"
    config = {
        "model_type": "somebody_vl",
        "text_config": {
            "model_type": "llama",
            "hidden_size": 256,
            "intermediate_size": 512,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 1024,
            "hidden_act": "silu",
            "max_position_embeddings": 4096,
            "tie_word_embeddings": False,
        },
        "vision_config": {"model_type": "somebody", "depth": 2},
    }
    path.write_text(json.dumps(config), encoding="utf-8")
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("estimate", "--gpu", "h100-sxm"),
        ("fit", "--gpu", "h100-sxm"),
        ("simulate", "--gpu", "h100-sxm", "--rate", "1", "--requests", "5"),
        ("compare", "--gpu", "h100-sxm,h200-sxm"),
        ("plan", "--gpu", "h100-sxm", "--rate", "1", "--prompt", "64", "--output", "8", "--ttft", "1s", "--tp", "1"),
    ],
    ids=lambda words: words[0],
)
def test_a_tower_that_is_not_counted_is_said(run: Run, uncounted: str, words: tuple[str, ...]):
    shown = run(words[0], uncounted, *words[1:])
    assert shown.code == 0, shown.err
    assert NOTE in shown.out
    assert NOTE in json.dumps(run(words[0], uncounted, *words[1:], "--format", "json").json)


def test_images_of_such_a_model_are_refused(run: Run, uncounted: str):
    ran = run("estimate", uncounted, "--gpu", "h100-sxm", *IMAGES)
    assert ran.code != 0 and "somebody" in ran.err and "towers: media:" in ran.err


def test_tokens_of_images_are_part_of_the_prompt(run: Run):
    """640 x 480 pixels are 20 x 15 tokens of 32 x 32."""
    record = run("estimate", *QWEN, "--prompt", "100", *IMAGES, "--format", "json").json
    assert record["load"]["prompt_tokens"] == 100 + 2 * 300 and record["load"]["media_tokens"] == 600
    assert record["media"]["towers"] == [{"tower": "vision", "items": 2, "sequences": 1, "positions": 1200}]
    text = run("estimate", *QWEN, "--prompt", "700", "--format", "json").json
    towers = sum(value for name, value in record["prefill"]["operators_s"].items() if name.startswith("vision."))
    assert record["ttft_s"] - text["ttft_s"] == pytest.approx(towers, rel=1e-9)
    assert record["memory"] == text["memory"] and record["media"] is not None and text["media"] is None


@pytest.mark.slow
def test_a_plan_with_images_needs_more(run: Run):
    words = ("plan", *QWEN, "--quant", "native", "--tp", "1", "--aggregated", "--rate", "40", "--prompt", "100")
    words += ("--output", "20", "--ttft", "1s", "--tpot", "50ms")
    text = run(*words, "--format", "json").json
    images = run(*words, *IMAGES, "--format", "json").json
    assert images["question"]["prompt_tokens"] == 700
    assert images["plan"]["devices"] > text["plan"]["devices"]


@for_each(
    ("words", "says"),
    [
        (("--images", "1"), "--image-size"),
        (("--image-size", "64x64"), "without images"),
        (("--images", "1", "--image-size", "64"), "WxH"),
        (("--video-frames", "4"), "--image-size"),
        (("--audio-seconds", "3"), "no tower that takes sound"),
    ],
)
def test_refused(run: Run, words: tuple[str, ...], says: str):
    ran = run("estimate", *QWEN, *words)
    assert ran.code != 0 and says in ran.err


def test_show_counts_the_tower_beside_the_model(run: Run) -> None:
    """Qwen2.5-VL-7B: the hub prints 8,292,166,656 elements in its safetensors, 7,615,616,512 of them Qwen2.5-7B's."""
    lines = run("show", "qwen2.5-vl-7b").out.splitlines()
    (tower,) = (line.split() for line in lines if line.startswith("in addition: vision tower"))
    assert tower[-1] == f"{8_292_166_656 - 7_615_616_512:,}"


def test_a_size_that_is_missing_is_shown_how_to_write(run: Run) -> None:
    assert "--image-size 1024x768" in run("estimate", "qwen3-vl-8b", "--gpu", "l40s", "--images", "1").err
