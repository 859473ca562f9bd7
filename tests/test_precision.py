"""Formats and shorthands: widths from the formats' own documents, arithmetic from what the operands can run in."""

from __future__ import annotations

import pytest

from inferplan.errors import UnknownNameError, UsageError
from inferplan.precision import arithmetic, find_format, parse_precision

HOPPER = frozenset({"fp32", "bf16", "fp16", "fp8", "int8"})
AMPERE = frozenset({"fp32", "bf16", "fp16", "int8"})


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("bf16", 16),
        ("fp8", 8),
        ("fp8-block", 8 + 32 / 16384),  # DeepSeek-V3: one fp32 scale for 128 x 128
        ("int4", 4 + 20 / 128),  # AWQ, GPTQ: fp16 scale and 4-bit zero for 128: 4.15625
        ("nvfp4", 4.5),
        ("mxfp4", 4.25),
    ],
)
def test_bits_of_a_weight_with_its_scales(name: str, bits: float) -> None:
    assert find_format(name).width * 8 == pytest.approx(bits, rel=1e-12)


@pytest.mark.parametrize(
    ("weights", "activations", "math"),
    [
        ("bf16", "bf16", "bf16"),
        ("int4", "bf16", "bf16"),
        ("fp8", "bf16", "bf16"),
        ("fp8", "fp8", "fp8"),
        ("int8", "int8", "int8"),
        ("nvfp4", "nvfp4", "fp4"),
        ("int4", "fp8", "fp8"),
        ("mxfp4", "bf16", "bf16"),
    ],
)
def test_weight_only_formats_run_in_their_activations(weights: str, activations: str, math: str) -> None:
    assert arithmetic(find_format(weights), find_format(activations)) == math


@pytest.mark.parametrize(
    ("text", "peaks", "weights", "activations", "kv"),
    [
        ("bf16", HOPPER, "bf16", "bf16", "bf16"),
        ("fp8", HOPPER, "fp8", "fp8", "bf16"),
        ("w8a8", HOPPER, "int8", "int8", "bf16"),
        ("int8", HOPPER, "int8", "int8", "bf16"),
        ("int4", HOPPER, "int4", "bf16", "bf16"),
        ("nvfp4", HOPPER, "nvfp4", "nvfp4", "bf16"),
        ("w4a16kv8", HOPPER, "int4", "bf16", "fp8"),
        ("w4a16kv8", AMPERE, "int4", "bf16", "int8"),
        ("w16a16kv8", AMPERE, "bf16", "bf16", "int8"),
        ("w4a8", HOPPER, "int4", "fp8", "bf16"),
    ],
)
def test_shorthands(text: str, peaks: frozenset[str], weights: str, activations: str, kv: str) -> None:
    precision = parse_precision(text, peaks)
    assert (precision.weights.name, precision.activations.name, precision.kv.name) == (weights, activations, kv)
    assert precision.experts == precision.weights
    assert {precision.embedding.name, precision.head.name, precision.base.name} == {"bf16"}


@pytest.mark.parametrize("text", ["w3a16", "w8a4", "banana", "w8", "", "w16a8", "w8a8kv2"])
def test_bad_shorthands_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="cannot read the precision"):
        parse_precision(text, HOPPER)


def test_unknown_format_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="bf16"):
        find_format("fp7")
