"""What an event loop asks of the price of a step, and how techniques change it: a base price and a list of modifiers.

The base are tables of the roofline's own prices (:mod:`inferplan.serving.step_times`). A technique says what it does to
a step through one method, :meth:`StepModifier.over`, which wraps a price for one batch in flight of one engine. What it
makes says what the step takes on each station (:class:`inferplan.serving.step_times.StepPrice`), of which steps on one
device are the sum, so that modifiers stand beside each other whatever the division is. They are applied in this order:

1. ``kernels``: what runs other kernels in the forward pass (LoRA adapters). It is priced by the roofline with
   everything else in the pass, drafts and their verification too, so it has tables of its own. One at most: a second
   one would be in the same tables.
2. ``beside``: what runs on the host or behind the forward pass (masks of a grammar). It sees how long the pass takes
   with all that is in it, and hides behind it. Several add up in any order as far as none hides behind another.

What is waited for before a step (caches from tiers, adapters on their way) is no price: it is in
:meth:`inferplan.serving.admission.Admitted.with_loads`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from inferplan.serving.decode_batch import DecodeBatch
from inferplan.serving.scheduler import Scheduler
from inferplan.serving.step_times import StepPrice, StepTimes


class Lane(NamedTuple):
    """What a modifier may see: one batch in flight (``place``) of one engine, its requests and their state."""

    scheduler: Scheduler
    place: int = 0

    @property
    def decodes(self) -> DecodeBatch:
        """The requests that decode in it."""
        return self.scheduler.lanes[self.place]


Change = Literal["kernels", "beside"]
"""What a modifier changes, which says where it stands in the list (see above)."""


class StepModifier(Protocol):
    """What a technique does to the steps of an engine."""

    @property
    def changes(self) -> Change:
        """What it changes."""

    def over(self, price: StepPrice, lane: Lane) -> StepPrice:
        """The price of a batch in flight with the technique, made of that without."""


Modifiers = tuple[StepModifier, ...]


def price_with_modifiers(times: StepTimes, modifiers: Sequence[StepModifier], lane: Lane) -> StepPrice:
    """The price of a batch in flight with all modifiers."""
    assert sum(modifier.changes == "kernels" for modifier in modifiers) <= 1, "tables know one change of kernels"
    price: StepPrice = times
    for modifier in sorted(modifiers, key=lambda one: one.changes, reverse=True):  # "kernels", then "beside"
        price = modifier.over(price, lane)
    return price
