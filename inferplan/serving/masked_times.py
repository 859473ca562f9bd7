"""Times of the steps of an engine some of whose requests follow a grammar."""

from __future__ import annotations

from inferplan.estimate.structured import MaskedSteps
from inferplan.serving.step_times import Chunk, StepTimes


class MaskedTimes:
    """The times of plain steps and what masks add to them; prompts that end in a step have a mask too."""

    def __init__(self, times: StepTimes, steps: MaskedSteps) -> None:
        self.times, self.steps = times, steps

    def decode(self, batch: int, context: float) -> float:
        """As :meth:`StepTimes.decode`."""
        return self._with(self.times.decode(batch, context), batch, batch)

    def mixed(self, batch: int, context: float, chunk: Chunk) -> float:
        """As :meth:`StepTimes.mixed`."""
        rows = batch + len(chunk.completed)
        return self._with(self.times.mixed(batch, context, chunk), rows, batch + chunk.prompts)

    def _with(self, seconds: float, rows: int, sequences: int) -> float:
        forward = seconds - self.times.host - self.times.host_sequence * sequences
        return seconds + float(self.steps.beyond(rows, forward))
