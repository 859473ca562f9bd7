"""Parts without a time: counted and kept, and refused by name where a time is asked for."""

from __future__ import annotations

import pytest

from inferplan.errors import MissingFactError
from inferplan.models.layers import LayerContext, parse_layer
from inferplan.models.spec import ModelSpec
from inferplan.work.formats import uniform
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Segment

PART = {"kind": "untimed", "why": "its mask is learned", "tensors": {"table": [100, 8], "scale": [8]}}
KEPT = {"active": {"table": 0.25}, "per_token": 12, "rate": 4, "state": 7, "width": 3}
MODEL = {"name": "m", "source": "test", "d_model": 8, "vocab": 10, "tied": True}


def test_counts_and_cache() -> None:
    """10 x 8 of the vocabulary, 8 of the norm, 808 of the part, of which 600 are not read by a token; 12/4 kept."""
    model = ModelSpec.model_validate(MODEL | {"layers": [{"mixer": PART | KEPT, "norms": 0}]})
    assert model.parameters["total"] == 80 + 8 + 808
    assert model.parameters["active"] == 80 + 8 + 208
    assert (model.kv_elements_per_token, model.state_elements_per_sequence) == (3, 7)
    assert model.to_dict()["layers"][0]["mixer"]["tensors"] == PART["tensors"]


def test_a_time_is_refused_by_name() -> None:
    segment = Segment(batch=1.0, new=1.0, past=4.0)
    context = LayerContext(d_model=8, precision=uniform(), parallel=Parallelism(), segments=(segment,))
    with pytest.raises(MissingFactError, match="time of this model is not known") as error:
        list(parse_layer(PART).ops(context))
    assert error.value.because == "its mask is learned"


def test_a_share_of_no_tensor_is_refused() -> None:
    with pytest.raises(ValueError, match="active names no tensor: other"):
        parse_layer(PART | {"active": {"other": 0.5}})
