"""Layers of Inkling by hand: weights, work of a step, what is kept."""

from __future__ import annotations

from inferplan.models.layers import LayerContext, parse_layer
from inferplan.work.formats import uniform
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Segment


def context(batch: float = 3.0, past: float = 100.0, width: int = 2048) -> LayerContext:
    segment = Segment(batch=batch, new=1.0, past=past)
    return LayerContext(d_model=width, precision=uniform(), parallel=Parallelism(), segments=(segment,))


def test_a_convolution_of_inkling_by_hand() -> None:
    """Four taps over keys and values of 8 heads of 128: 2,048 channels; transformers keeps four inputs of each."""
    part = parse_layer({"kind": "causal_conv", "channels": 2048, "taps": 4})
    assert sum(weight.elements for weight in part.weights(6144)) == 4 * 2048
    assert (part.cache().state, part.cache().spare) == (4 * 2048, 2048)
    (op,) = part.ops(context())
    assert op.work().flop == 2 * 4 * 3 * 2048


def test_a_convolution_in_groups_by_hand() -> None:
    """Each output of a head of 128 reads two inputs of all its channels; the first convolution keeps those."""
    part = parse_layer({"kind": "causal_conv", "channels": 1280, "taps": 2, "group": 128, "kept": 0})
    (op,) = part.ops(context())
    assert op.work().flop == 2 * 3 * 1280 * 128 * 2
    assert part.cache().state == 0


def test_biases_of_every_distance_by_hand() -> None:
    part = parse_layer({"kind": "relative_bias", "heads": 64, "rank": 16, "extent": 1024})
    flop = sum(float(op.work().flop) for op in part.ops(context(width=6144)))
    assert flop == 2 * 3 * 64 * 16 * (6144 + 1024)


def test_a_router_that_is_a_network_by_hand() -> None:
    """Zaya: 2,048 to 256, a norm, two layers of 256, biases of all three, 16 experts and one that does nothing."""
    experts = {"kind": "moe", "experts": 16, "top_k": 1, "d_ff": 2048, "zero_experts": 1}
    own, plain = parse_layer(experts | {"router_width": 256}), parse_layer(experts)
    more = sum(w.elements for w in own.weights(2048)) - sum(w.elements for w in plain.weights(2048))
    assert more == 2048 * 256 + 2 * 256 * 256 + 3 * 256 + 256 + 17 * 256 - 17 * 2048
