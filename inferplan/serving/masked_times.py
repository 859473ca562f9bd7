"""Times of the steps of an engine some of whose requests follow a grammar."""

from __future__ import annotations

from inferplan.estimate.structured import MaskedSteps, MaskRows
from inferplan.serving.step_price import Change, Lane
from inferplan.serving.step_times import NO_PROMPTS, Chunk, StepPrice


class MaskModifier:
    """Masks as a :class:`inferplan.serving.step_price.StepModifier`: the host fills them beside the forward pass."""

    changes: Change = "beside"

    def __init__(self, steps: MaskedSteps) -> None:
        self.steps = steps

    def over(self, price: StepPrice, lane: Lane) -> StepPrice:
        """The price with masks of the requests of a lane."""
        return MaskedTimes(price, self.steps, lane)


class MaskedTimes(StepPrice):
    """The times of plain steps and what masks add to them; prompts that end in a step have a mask too.

    Masks of a batch are filled while it is in its forward pass, that of the verification where there are drafts: a
    draft is made behind the tokens that masks allow. The last stage of a pipeline samples, so it waits for them, copies
    and applies them. The host fills them after it has sent the batch to the first stage, and composes no other batch
    meanwhile (``v1/engine/core.py``, ``step_with_batch_queue``: ``execute_model(non_block=True)``,
    ``get_grammar_bitmask``, ``sample_tokens(non_block=True)``). A batch that waits on its way leaves them more time
    than its kernels do; that is not counted.
    """

    def __init__(self, price: StepPrice, steps: MaskedSteps, lane: Lane) -> None:
        self.price, self.steps, self.lane = price, steps, lane
        self.host, self.host_sequence = price.host, price.host_sequence
        self.alone = price.verification

    @property
    def verification(self) -> StepPrice:
        return self if self.alone is self.price else MaskedTimes(self.alone, self.steps, self.lane)

    def stations(
        self, batch: float, context: float, chunk: Chunk = NO_PROMPTS, beside: float | None = None
    ) -> list[float]:
        times = self.price.stations(batch, context, chunk, beside)
        alone = times if self.alone is self.price else self.alone.stations(batch, context, chunk, beside)
        forward = sum(alone) - self.host - self.host_sequence * (batch + chunk.prompts)
        times[-1] += float(self.steps.beyond(self._rows(int(batch), chunk), forward))
        return times

    def behind(self, batch: int, chunk: Chunk = NO_PROMPTS) -> float:
        """Mean seconds in which the masks of a batch are filled."""
        return self.price.behind(batch, chunk) + self.steps.filled(self._rows(batch, chunk))

    def _rows(self, batch: int, chunk: Chunk = NO_PROMPTS) -> MaskRows:
        """Who gets a token. The token that ends a thought, and the first one behind it, count as thoughts."""
        completed, records = len(chunk.completed), self.lane.scheduler.records
        if records.before is None:
            return MaskRows(batch, completed)
        thinking, output = min(self.lane.decodes.thinking, batch), self.lane.scheduler.progress.output
        first = sum(records.output[request] - output(request) < records.before[request] for request in chunk.completed)
        return MaskRows(batch - thinking, completed - first, thinking, first)
