"""The sweep over every type of transformers: a share of it here, all of it with ``INFERPLAN_SWEEP=all``."""

from __future__ import annotations

import os
import random

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from inferplan.models.huggingface import model_from_config
from tests.cases import for_each
from tests.oracle.built import Counts, build, config_of, count, growth, kinds
from tests.oracle.sweep import parameters, sweep
from tests.oracle.variations import variations
from tests.oracle.zoo import sample

SHARE = (
    "llama",
    "gemma3_text",
    "deepseek_v3",
    "qwen3_vl",
    "lfm3",
    "laguna",
    "mimo_v2_flash",
    "bitnet",
    "persimmon",
    "hy_v4",
    "bailing_hybrid",
)
FULL = os.environ.get("INFERPLAN_SWEEP") == "all"


@for_each("name", list(kinds()) if FULL else sample(SHARE))
def test_no_count_of_a_type_is_wrong(name):
    (found,) = sweep([name], 20 if FULL else 3, 0)
    assert found.verdict != "wrong", found.what
    if not FULL:
        assert found.verdict == "exact", found.what


def test_what_is_built_is_what_the_paper_counts():
    """Llama 2 7B: 6,738,415,616 parameters, and 32 layers of 32 heads of 128 keys and values."""
    built = build(config_of("llama"), kinds()["llama"])
    assert count(built).total == 6_738_415_616
    assert growth(built, []) == (2 * 32 * 32 * 128, 2 * 32 * 32 * 128, 0)


def test_a_window_stops_the_growth():
    """One layer of four of a Gemma 3 with windows of 16 sees everything."""
    kinds_of_layers = ["sliding_attention"] * 3 + ["full_attention"]
    fields = {"layer_types": kinds_of_layers, "num_hidden_layers": 4, "sliding_window": 16}
    one = 2 * 4 * 256  # keys and values of 4 heads
    assert growth(build(config_of("gemma3_text", fields), kinds()["gemma3_text"]), [16]) == (4 * one, one, 0)


def test_another_count_is_found():
    """The sweep sees one parameter too many."""
    config = config_of("llama", {"num_hidden_layers": 2})
    model = model_from_config(config.to_dict(), "llama", "test")
    total = model.parameters["total"]
    assert parameters(model, Counts(total=total)) == ""
    assert "(-1)" in parameters(model, Counts(total=total + 1))


def test_variations_are_the_same_for_a_seed():
    first, second = (variations("llama", 5, random.Random(7)) for _ in range(2))
    drawn = [next(first) for _ in range(5)]
    assert drawn == [next(second) for _ in range(5)]
    assert any(drawn)
