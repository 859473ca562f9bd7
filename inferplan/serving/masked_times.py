"""Times of the steps of an engine some of whose requests follow a grammar."""

from __future__ import annotations

from inferplan.estimate.structured import MaskedSteps, MaskRows
from inferplan.serving.step_price import Change, Lane, StepPrice
from inferplan.serving.step_times import NO_PROMPTS, Chunk


class MaskModifier:
    """Masks as a :class:`inferplan.serving.step_price.StepModifier`: the host fills them beside the forward pass."""

    changes: Change = "beside"

    def __init__(self, steps: MaskedSteps) -> None:
        self.steps = steps

    def over(self, price: StepPrice, lane: Lane) -> StepPrice:
        """The price with masks of the requests of a lane."""
        return MaskedTimes(price, self.steps, lane)


class MaskedTimes:
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
        """The same without the passes of drafts."""
        return self if self.alone is self.price else MaskedTimes(self.alone, self.steps, self.lane)

    def decode(self, batch: int, context: float) -> float:
        """As :meth:`StepTimes.decode`."""
        seconds = self.price.decode(batch, context)
        pass_seconds = seconds if self.alone is self.price else self.alone.decode(batch, context)
        return seconds + self._beyond(self._rows(batch), pass_seconds - self.host - self.host_sequence * batch)

    def mixed(self, batch: int, context: float, chunk: Chunk) -> float:
        """As :meth:`StepTimes.mixed`."""
        seconds = self.price.mixed(batch, context, chunk)
        pass_seconds = seconds if self.alone is self.price else self.alone.mixed(batch, context, chunk)
        forward = pass_seconds - self.host - self.host_sequence * (batch + chunk.prompts)
        return seconds + self._beyond(self._rows(batch, chunk), forward)

    def stations(
        self, batch: float, context: float, chunk: Chunk = NO_PROMPTS, beside: float | None = None
    ) -> list[float]:
        """As :meth:`StepTimes.stations`."""
        times = self.price.stations(batch, context, chunk, beside)
        alone = times if self.alone is self.price else self.alone.stations(batch, context, chunk, beside)
        times[-1] += self._beyond(self._rows(int(batch), chunk), sum(alone[1:]))
        return times

    def behind(self, batch: int, chunk: Chunk = NO_PROMPTS) -> float:
        """Mean seconds in which the masks of a batch are filled."""
        return self.price.behind(batch, chunk) + self.steps.filled(self._rows(batch, chunk))

    def _beyond(self, rows: MaskRows, forward: float) -> float:
        return float(self.steps.beyond(rows, forward))

    def _rows(self, batch: int, chunk: Chunk = NO_PROMPTS) -> MaskRows:
        """Who gets a token. The token that ends a thought, and the first one behind it, count as thoughts."""
        completed, records = len(chunk.completed), self.lane.scheduler.records
        if records.before is None:
            return MaskRows(batch, completed)
        thinking, output = min(self.lane.decodes.thinking, batch), self.lane.scheduler.progress.output
        first = sum(records.output[request] - output(request) < records.before[request] for request in chunk.completed)
        return MaskRows(batch - thinking, completed - first, thinking, first)
