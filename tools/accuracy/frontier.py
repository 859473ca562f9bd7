"""Does the model pick what measured best? Forms that somebody deployed, at a speed that a user must get.

The form is picked that is predicted to give the most tokens a second and GPU among those predicted to keep the speed;
what it was measured at is held against the best that was measured to keep it. A pick that misses the speed when it is
measured counts with nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from inferplan.validation.rows import StatisticValues
from inferplan.validation.score import Scored
from tools.accuracy.scores import Line, markdown

SPEEDS = (20.0, 30.0, 45.0, 70.0, 100.0)
"""Tokens a second of one user."""
_NEAR = 0.9
_FEWEST = 5
"""Forms without which there is nothing to pick from."""


def _tpot(figures: StatisticValues) -> float | None:
    return figures.at("tpot", "median") or figures.at("tpot", "mean")


def _throughput(figures: StatisticValues | None) -> float:
    """Tokens a second and GPU, prompts and outputs."""
    return 0.0 if figures is None else figures.at("throughput") or 0.0


def keeps(figures: StatisticValues | None, speed: float) -> bool:
    """Whether a user gets ``speed`` tokens a second, by the median where there is one, else the mean."""
    seconds = None if figures is None else _tpot(figures)
    return seconds is not None and seconds <= 1.0 / speed


def pick(forms: Sequence[Scored], speed: float) -> Scored | None:
    """The form that is predicted best; ``None`` where none is predicted to be fast enough."""
    fast = [one for one in forms if keeps(one.prediction, speed)]
    return max(fast, key=lambda one: _throughput(one.prediction), default=None)


def share_of_best(forms: Sequence[Scored], speed: float) -> tuple[float, Scored | None, float] | None:
    """What the pick was measured at over the best measured, the pick, that best; ``None`` where no form is as fast."""
    best = max((_throughput(one.row.measured) for one in forms if keeps(one.row.measured, speed)), default=0.0)
    if not best:
        return None
    chosen = pick(forms, speed)
    got = _throughput(chosen.row.measured) if chosen is not None and keeps(chosen.row.measured, speed) else 0.0
    return got / best, chosen, best


def frontier_section(scored: Sequence[Scored]) -> str:
    """The picks of every GPU and length of request with forms enough, at each speed."""
    groups: dict[tuple[str, float, float], list[Scored]] = defaultdict(list)
    for one in scored:
        run = one.row.run
        if run is not None and _tpot(one.row.measured) and _throughput(one.row.measured):
            groups[run.gpu, run.prompt, run.output].append(one)
    lines: list[Line] = []
    shares: dict[str, list[float]] = defaultdict(list)
    for (gpu, prompt, output), forms in sorted(groups.items()):
        for speed in SPEEDS if len(forms) >= _FEWEST else ():
            found = share_of_best(forms, speed)
            if found is None:
                continue
            share, chosen, best = found
            what = "none is predicted to keep it"
            if chosen is not None and chosen.row.run is not None:
                run = chosen.row.run
                what = f"{chosen.row.cells.get('id', '')}: {run.label}, {run.form}, {run.concurrency} users"
            load = f"{gpu}, {prompt:.0f}/{output:.0f}, {len(forms)} forms"
            lines.append([load, f"{speed:.0f}", f"{best:,.0f}", f"{share:.0%}", what])
            shares[gpu].append(share)
    said = "; ".join(f"{gpu} {sum(s >= _NEAR for s in found)} of {len(found)}" for gpu, found in sorted(shares.items()))
    heads = ("GPU, lengths", "tokens/s per user", "best tokens/s/GPU", "pick", "what is picked")
    return f"Picks within 10 % of the best measured: {said or 'none'}.\n\n" + markdown(heads, lines)
