"""What the price of a part rests on, as explain, JSON, error lines and the documentation say it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from inferplan.answers.explain import Explainer
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.offload import OffloadAsked
from inferplan.estimate.deployment import parts_rest_on
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.resting import PARTS
from inferplan.work.adapters import LoraAsked
from inferplan.work.parallel import Parallelism
from tests.cases import for_each

ROOT = Path(__file__).parent.parent
EXPERTS = OffloadAsked(cpu_moe_layers=36, host="epyc-9654", host_memory="384GB")
PLAIN = {"kernels": "measured", "step": "published"}
"""H100 is timed (configs/calibration/h100-sxm.yaml), the host of a step comes from serving rows (configs/step.yaml)."""
IDEAL = {"kernels": "formula"}


@for_each(
    ("changes", "kinds"),
    [
        ({}, PLAIN),
        ({"ideal": True}, IDEAL),
        ({"gpu": "mi300x"}, PLAIN | {"kernels": "carried"}),
        ({"parallel": Parallelism(tp=2)}, PLAIN | {"collectives": "measured"}),
        ({"parallel": Parallelism(tp=2), "ideal": True}, IDEAL | {"collectives": "formula"}),
        ({"lora": LoraAsked(rank=16)}, PLAIN | {"adapters": "carried"}),
        ({"lora": LoraAsked(rank=16), "ideal": True}, IDEAL | {"adapters": "formula"}),
        ({"lora": LoraAsked(rank=16, active=0)}, PLAIN),
        ({"gpu": "h100-sxm:3g.40gb"}, PLAIN | {"kernels": "carried", "mig": "carried"}),
        ({"gpu": "h100-sxm:3g.40gb", "ideal": True}, IDEAL | {"mig": "formula"}),
        ({"power_cap": 500.0}, PLAIN | {"power_cap": "published"}),
        ({"model": "gpt-oss-20b"}, PLAIN | {"routing": "published"}),
        ({"model": "gpt-oss-20b", "expert_skew": 0.5}, PLAIN | {"routing": "formula"}),
        (
            {"model": "gpt-oss-120b", "gpu": "rtx-4090", "engine": "llama.cpp", "offload": EXPERTS},
            PLAIN | {"kernels": "carried", "routing": "published", "host": "published", "link": "formula"},
        ),
    ],
)
def test_each_part_says_what_its_price_rests_on(changes: dict[str, Any], kinds: dict[str, str]) -> None:
    deployment = assemble(Request(**({"model": "llama-3.1-8b", "gpu": "h100-sxm"} | changes)))
    found = parts_rest_on(deployment)
    assert {part: one["kind"] for part, one in found.items()} == kinds
    assert all(one["said"] and "{" not in one["said"] for one in found.values())


def test_every_page_that_the_table_names_is_there() -> None:
    for part in PARTS.values():
        name, _, heading = part.page.partition("#")
        text = (ROOT / name).read_text(encoding="utf-8")
        headings = [
            re.sub(r"[^a-z -]", "", line.lower()).strip().replace(" ", "-") for line in re.findall("^## .*", text, re.M)
        ]
        assert not heading or heading in headings, part.page


def test_the_documentation_holds_every_part_and_kind() -> None:
    page = (ROOT / "docs" / "accuracy-parts.md").read_text(encoding="utf-8")
    table = page.partition("## What each part rests on")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in table.splitlines() if line.startswith("| ")]
    said = [(name.replace("_", " "), kind) for name, part in PARTS.items() for kind in part.said]
    assert [tuple(row) for row in rows[2:]] == said


def explained(number: str, **changes: Any) -> list[tuple[str, str]]:
    request = Request(**({"model": "llama-3.1-8b", "gpu": "h100-sxm", "lora": LoraAsked(rank=16)} | changes))
    found = Explainer(request=request, load=StaticLoad(batch=8.0, prompt=1024.0, output=256.0)).explain(number)
    return [(one.part, one.kind) for one in found.rests_on]


@for_each(
    ("number", "parts"),
    [
        ("memory.weights", [("work", "formula")]),
        ("memory.total", [("work", "formula"), ("memory", "published")]),
        ("decode.flop", [("work", "formula")]),
        ("decode.host", [("step", "published")]),
        ("decode.ffn.down", [("kernels", "measured")]),
        ("decode.ffn.down.lora_shrink", [("adapters", "carried")]),
    ],
)
def test_a_number_says_what_it_rests_on(number: str, parts: list[tuple[str, str]]) -> None:
    assert explained(number) == parts


def test_the_shares_of_a_step_are_those_of_its_seconds() -> None:
    """Adapters have the seconds of their kernels: those whose names end so are summed here by hand."""
    request = Request(model="llama-3.1-8b", gpu="h100-sxm", lora=LoraAsked(rank=16))
    explainer = Explainer(request=request, load=StaticLoad(batch=8.0, prompt=1024.0, output=256.0))
    shares = {(one.part, one.kind): one.share for one in explainer.explain("decode.time").rests_on}
    seconds = explainer.estimate.decode.by_operator()
    adapters = sum(float(spent) for name, spent in seconds.items() if name.rpartition(".")[2].startswith("lora_"))
    whole = float(explainer.estimate.decode.time)
    assert shares["adapters", "carried"] == pytest.approx(adapters / whole)
    assert shares["step", "published"] == pytest.approx(float(seconds["host"]) / whole)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert ("energy", "published") in explained("watts.decode")
    assert ("kernels", "formula") in explained("tpot", ideal=True)
