"""What the price of a part rests on, as JSON says it."""

from __future__ import annotations

from typing import Any

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.offload import OffloadAsked
from inferplan.estimate.deployment import parts_rest_on
from inferplan.work.adapters import LoraAsked
from tests.cases import for_each

EXPERTS = OffloadAsked(cpu_moe_layers=36, host="epyc-9654", host_memory="384GB")


@for_each(
    ("changes", "kinds"),
    [
        ({}, {}),
        ({"lora": LoraAsked(rank=16)}, {"adapters": "carried"}),
        ({"lora": LoraAsked(rank=16), "ideal": True}, {"adapters": "formula"}),
        ({"lora": LoraAsked(rank=16, active=0)}, {}),
        ({"gpu": "h100-sxm:3g.40gb"}, {"mig": "carried"}),
        ({"gpu": "h100-sxm:3g.40gb", "ideal": True}, {"mig": "formula"}),
        ({"power_cap": 500.0}, {"power_cap": "published"}),
        (
            {"model": "gpt-oss-120b", "gpu": "rtx-4090", "engine": "llama.cpp", "offload": EXPERTS},
            {"host": "published", "link": "formula"},
        ),
    ],
)
def test_each_part_says_what_its_price_rests_on(changes: dict[str, Any], kinds: dict[str, str]) -> None:
    deployment = assemble(Request(**({"model": "llama-3.1-8b", "gpu": "h100-sxm"} | changes)))
    found = parts_rest_on(deployment)
    assert {part: one["kind"] for part, one in found.items()} == kinds
    assert all(one["said"] for one in found.values())
