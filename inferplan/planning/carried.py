"""What the requests of a demand carry beside text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from inferplan.catalog.assemble import Request
from inferplan.catalog.files import load_model
from inferplan.catalog.workloads import WorkloadSpec, carried_media
from inferplan.estimate.structured import Structured
from inferplan.estimate.towers import media_of_requests
from inferplan.fields import question_if_asked
from inferplan.planning.demand import Demand
from inferplan.traffic.popularity import AdaptersNamed
from inferplan.traffic.requests import Media


def with_named(demand: Demand, values: Mapping[str, Any]) -> Demand:
    """The demand with the adapters that its requests name, and the grammars that they follow, as options ask."""
    named = question_if_asked(AdaptersNamed, values)
    return replace(
        demand,
        structured=question_if_asked(Structured, values),
        adapters=None if named is None else named.popularity,
        lora_bandwidth=None if named is None else named.bandwidth,
    )


def with_media(
    request: Request, demand: Demand, named: WorkloadSpec | None, traced: bool = False
) -> tuple[Request, Demand]:
    """What is asked of devices and the demand, with the media that are asked for, or that the workload has. traced: the
    prompts are those of a trace, to which nothing is added. Raises ``UsageError`` for media beside them."""
    text = None if traced or demand.trace is not None else demand.prompt.average
    asked, sets = carried_media(request.media, named, text)
    request, carrying = replace(request, media=asked), media_of_requests(load_model(request.model), asked)
    if carrying is None:
        return request, demand
    media = Media(tokens=carrying.tokens, sets=sets)
    return request, replace(demand, prompt=media.beside(demand.prompt), text=demand.prompt, media=media)
