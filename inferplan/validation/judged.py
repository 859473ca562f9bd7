"""What predictions say of a server's measured loads, one of them held out, and whether an anchor is worth it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from pathlib import Path

from inferplan.errors import InferplanError
from inferplan.validation.held_out import FEWEST, HeldOut, HeldOutLatency, choose, count_clipped, hold_out
from inferplan.validation.importers import plain
from inferplan.validation.rows import Row
from inferplan.validation.run import Pricing, price_rows
from inferplan.validation.score import Scored


class Judged:
    """What predictions say of the measured rows: each row with its own, the load that was held out, or why neither."""

    def __init__(self, scored: Sequence[Scored] = (), held: HeldOut | None = None, why: str = "") -> None:
        self.scored, self.held, self.why = scored, held, why


def judge(where: str, text: str, pricing: Pricing, facts: Mapping[str, str]) -> Judged:
    """The rows of a CSV as `validate` reads them, predicted, and one of them held out; or why not."""
    read = plain.read(Path(where), text, facts)
    why = _unpriced(read)
    if why:
        return Judged(why=why)
    scored = price_rows(read, pricing)
    index = choose(scored)
    if index is None:
        refused = next((one.refused for one in scored if one.prediction is None), "")
        return Judged(scored, why=refused or f"it takes more than {FEWEST} loads that are not suspect")
    try:
        return Judged(scored, hold_out(scored, index, pricing, where))
    except InferplanError as error:
        return Judged(scored, why=f"{error.what}: {error.because}")


def _unpriced(read: Sequence[Row]) -> str:
    """Why no row can be predicted: facts that are missing, or that the server contradicts."""
    opposed = [words for row in read for words in row.opposed]
    if opposed:
        return f"the server says {opposed[0]}"
    if all(row.run is None for row in read):
        said = "; the server does not say it, --model, --gpu, --engine, --quant and --tp do"
        return f"{read[0].refused}{said if 'empty' in read[0].refused else ''}"
    return ""


def worse(held: HeldOut) -> HeldOutLatency | None:
    """The latency of the load that was held out which the anchor made worse; ``None`` where it did so of neither.

    Two runs of one load differ by the noise of the process: an anchored figure no farther from the measured one is as
    good as it.
    """
    for one in held.figures:
        before, after = abs(log(1.0 + one.error_before)), abs(log(1.0 + one.error))
        if after > before and after > held.fitted.anchor.process.kernel(one.metric).noise:
            return one
    return None


def beyond(held: HeldOut) -> HeldOutLatency | None:
    """The latency of which most loads are farther off than an anchor takes in; ``None`` for neither."""
    for one in held.figures:
        if 2 * count_clipped(held, one.metric) > len(held.fitted.anchor.measured(one.metric)[1]):
            return one
    return None
