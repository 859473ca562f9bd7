"""4-bit weights on devices that do not multiply in them: a line beside a plan, which the plan that tries them keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inferplan.catalog.assemble import Request
from inferplan.catalog.price_lists import price_book
from inferplan.planning.demand import Demand
from inferplan.planning.four_bits import asked_with, in_four_bits
from inferplan.planning.option import Sizing
from inferplan.planning.plan import Plan, plan
from inferplan.planning.question import Question
from inferplan.planning.space import Space
from inferplan.reports.plan_notes import four_bits_line, notes
from inferplan.reports.plan_record import plan_record
from inferplan.traffic.requests import Lengths, Slo
from tests.cases import for_each

L4 = 0.805
"""USD an hour of a g6.xlarge, one L4, on demand in us-east-1 (AWS)."""


def asked(model: str = "qwen3-4b", gpus: tuple[str, ...] = ("l4",), **changes: object) -> Question:
    question = Question(
        space=Space(base=Request(model=model, gpu=""), gpus=gpus, most=1, disaggregate=False),
        demand=Demand(prompt=Lengths(mean=400), output=Lengths(mean=100), rate=10.0),
        slo=Slo(ttft=0.15, tpot=0.02, percentile=95.0),
        sizing=Sizing(),
        prices=price_book(stated=[f"l4={L4}"]),
    )
    return replace(question, space=replace(question.space, **changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def planned() -> Plan:
    return plan(asked())


def test_what_the_line_says_is_what_the_formats_cost_when_they_are_tried(planned: Plan) -> None:
    """qwen3-4b in fp8 reads twice the bytes of each step: at 20 ms a token 4-bit weights take half the L4 or fewer."""
    found = planned.four_bits
    assert found is not None and found.option.deployment.precision.weights.name == "int4"
    assert found.option.cost == pytest.approx(found.option.devices * L4)
    assert found.option.cost < 0.6 * planned.option.cost
    assert asked_with(planned.question) == "native,fp8,w4a16"
    tried = plan(asked(quants=(None, "fp8", "w4a16")))
    assert tried.option.cost <= found.option.cost
    assert tried.option.cost == pytest.approx(found.option.cost, rel=0.1)
    assert tried.four_bits is None


def test_every_face_says_it(planned: Plan) -> None:
    line = four_bits_line(planned)
    assert line in notes(planned)
    found = planned.four_bits
    assert found is not None
    for text in (f"{found.option.devices} x l4 in w4a16", f"{found.option.cost:.2f} USD/h", "--quant native,fp8,w4a16"):
        assert text in line
    said = plan_record(planned)["four_bits"]
    assert said["quant"] == "native,fp8,w4a16"
    assert (said["devices"], said["cost"]) == (found.option.devices, found.option.cost)


def test_two_per_cent_are_not_worth_a_line(planned: Plan) -> None:
    found = planned.four_bits
    assert found is not None and found.option.cost is not None
    assert in_four_bits(asked(), found.option.cost / 0.97) is not None
    assert in_four_bits(asked(), found.option.cost / 0.99) is None
    assert in_four_bits(asked(), None) is None


@for_each(
    ("model", "gpus", "quants", "other"),
    [
        ("qwen3-4b", ("l4",), ("fp8",), None),
        ("qwen3-4b", ("b200-hgx", "mi355x"), None, None),
        ("gpt-oss-20b", ("l4",), None, None),
        ("kimi-k2.5", ("h200-sxm",), None, None),
        ("qwen3-4b", ("b200-hgx", "l4"), None, "native,fp8,nvfp4,w4a16"),
        ("qwen3-4b", ("a100-80gb-sxm",), None, "native,w4a16"),
    ],
)
def test_formats_that_were_named_and_weights_that_are_in_four_bits_have_no_line(
    model: str, gpus: tuple[str, ...], quants: tuple[str, ...] | None, other: str | None
) -> None:
    assert asked_with(asked(model, gpus, quants=quants)) == other


def test_only_engines_that_load_such_checkpoints_are_named() -> None:
    """llama.cpp reads GGUF files alone (its README: models "in the GGUF file format"): no AWQ, no GPTQ."""
    assert asked_with(asked(engines=("llama.cpp",))) is None
    assert in_four_bits(asked(engines=("llama.cpp",)), 1e9) is None
    both = asked(engines=("llama.cpp", "vllm"))
    assert asked_with(both) == "native,fp8,w4a16"
    found = in_four_bits(both, 1e9)
    assert found is not None and found.option.deployment.engine.name == "vllm"
