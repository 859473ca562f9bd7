"""What requests carry beside text: as they are asked for, or as their workload has them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from inferplan.errors import UsageError

if TYPE_CHECKING:
    from inferplan.catalog.assemble import Request
    from inferplan.catalog.workloads import WorkloadSpec
    from inferplan.estimate.deployment import Deployment
    from inferplan.traffic.requests import Lengths, Media


def asked_of(request: Request, named: WorkloadSpec | None, text: float | None) -> tuple[Request, Lengths]:
    """The request with what is asked for, or what the workload's requests carry, and how many sets of it they have.

    text: mean prompt tokens beside it; ``None`` for requests of a trace, to which nothing is added.
    """
    from inferplan.traffic.requests import Lengths

    asked, sets = request.media, Lengths()
    if not asked.any and named is not None and named.media is not None:
        asked, sets = named.media.asked()
    if not asked.any:
        return request, sets
    if text is None:
        raise UsageError(
            "a trace says what its prompts are: no images are added to them",
            hint="--prompt and --output with --rate or --concurrency, or leave the media out",
        )
    return replace(request, media=replace(asked, text=text)), sets


def media_of(deployment: Deployment, sets: Lengths) -> Media | None:
    """What the requests that a deployment serves carry; ``None`` for text alone."""
    from inferplan.traffic.requests import Media

    return None if deployment.media is None else Media(tokens=deployment.media.tokens, sets=sets)
