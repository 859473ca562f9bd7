"""Times of the steps of an engine by the LoRA adapters that its requests have at that moment."""

from __future__ import annotations

from inferplan.serving.adapter_slots import AdapterPool, AdapterSlots
from inferplan.serving.step_price import Change, Lane
from inferplan.serving.step_times import NO_PROMPTS, Chunk, StepPrice, StepTimes


class AdapterModifier:
    """LoRA adapters as a :class:`inferplan.serving.step_price.StepModifier`: they bring kernels of their own, so they
    choose among tables of the whole step and come before what stands beside it."""

    changes: Change = "kernels"

    def __init__(self, pool: AdapterPool) -> None:
        self.pool = pool

    def over(self, price: StepPrice, lane: Lane) -> StepPrice:
        """The tables by the number of adapters, in place of those without a number (``price``)."""
        admitted = lane.scheduler.admitted
        if admitted.adapters is None:
            admitted.adapters = AdapterSlots(self.pool, lane.scheduler.meter, len(lane.scheduler.lanes))
        return AdapterTimes(self.pool, admitted.adapters.lanes[lane.place])


class AdapterTimes(StepPrice):
    """Seconds of a batch on a line between the two tabulated numbers of adapters next to its own."""

    def __init__(self, pool: AdapterPool, users: dict[int, int]) -> None:
        self.pool, self.users = pool, users
        self.between: dict[int, tuple[StepTimes, StepTimes, float]] = {}
        """By number of adapters: the times at the numbers below and above that are tabulated, and the way between."""
        any_of_them = pool.times(1)
        self.host, self.host_sequence = any_of_them.host, any_of_them.host_sequence
        self.drafts = bool(any_of_them.drafts)

    @property
    def verification(self) -> StepPrice:
        return _Verification(self) if self.drafts else self

    def _now(self) -> tuple[StepTimes, StepTimes, float]:
        count = min(len(self.users), self.pool.slots)
        if count not in self.between:
            low, high = around(count, self.pool.slots)
            self.between[count] = self.pool.times(low), self.pool.times(high), (count - low) / max(high - low, 1)
        return self.between[count]

    def stations(
        self, batch: float, context: float, chunk: Chunk = NO_PROMPTS, beside: float | None = None
    ) -> list[float]:
        low, high, share = self._now()
        times = low.stations(batch, context, chunk, beside)
        if not share:
            return times
        return [a + (b - a) * share for a, b in zip(times, high.stations(batch, context, chunk, beside))]


class _Verification(AdapterTimes):
    """The steps of an engine with adapters, without its drafts."""

    def __init__(self, whole: AdapterTimes) -> None:
        self.whole, self.host, self.host_sequence, self.drafts = whole, whole.host, whole.host_sequence, False

    def _now(self) -> tuple[StepTimes, StepTimes, float]:
        low, high, share = self.whole._now()
        return low.verification, high.verification, share


def around(count: int, slots: int) -> tuple[int, int]:
    """The tabulated numbers of adapters next to one: 0 to 16, 18, 20, ..., 32, 36, ..., at most ``slots``."""
    low = high = 0
    while high < count:
        low, high = high, min(high + (1 << max(high.bit_length() - 4, 0)), slots)
    return (high, high) if high == count else (low, high)
