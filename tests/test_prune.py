"""Pruning, against the pruned models that were published."""

from __future__ import annotations

import pytest

from inferplan.catalog.files import load_model
from inferplan.errors import UsageError
from inferplan.models.prune import parse_prune, prune
from inferplan.models.spec import LayerGroup
from tests.cases import for_each


def test_minitron_8b_is_nemotron_4_15b_pruned() -> None:
    """15B to 8B: Minitron (2407.14679 table 1) keeps 32 layers and cuts d_model to 4096 and d_ff to 16384."""
    pruned = prune(load_model("nemotron-4-15b"), parse_prune("d_model=4096,d_ff=16384"))
    assert pruned.parameters == load_model("minitron-8b").parameters
    assert pruned.parameters["total"] == pytest.approx(8.3e9, rel=0.01)


def test_shares_and_sizes_are_the_same_cut() -> None:
    model = load_model("llama-3.1-8b")
    assert prune(model, {"d_ff": 0.75, "layers": 0.75}).layers == prune(model, {"d_ff": 10752, "layers": 24}).layers


def test_hybrids_keep_the_share_of_each_kind() -> None:
    """Gemma 3 12B has 40 local and 8 global layers; half of it has 20 and 4."""
    model = load_model("gemma-3-12b")
    assert sorted(count for _, count in model.distinct) == [8, 40]
    assert sorted(count for _, count in prune(model, {"layers": 0.5}).distinct) == [4, 20]


@for_each("text", ["layers", "layers=", "layers=x", "depth=3", "layers=99", "d_ff=0", "experts=4"])
def test_what_cannot_be_cut_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        prune(load_model("llama-3.1-8b"), parse_prune(text))


def test_original_is_untouched() -> None:
    model = load_model("llama-3.1-8b")
    before = model.parameters["total"]
    prune(model, {"layers": 8})
    assert model.parameters["total"] == before
    assert isinstance(model.layers[0], LayerGroup)
