"""How far predicted ratios of two forms of serving are off: ``configs/forms.yaml``.

``python -m tools.fitting forms FOLDER`` writes it from pairs of measured rows that differ in one thing: expert
parallelism or sliced experts, attention data parallelism or tensor parallelism, drafts or none, pools apart or
together, one engine release or another. Of a pair the ratio of output tokens/s/GPU is predicted and measured, at the
same users. A ratio may be right where both latencies are off, and wrong where each is within its band.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import yaml

from inferplan.catalog.files import config_root
from inferplan.devices.releases import release_number
from inferplan.estimate.support import DRAFTS, POOLS
from inferplan.files import save
from inferplan.units import Array
from inferplan.validation.names import model_of
from inferplan.validation.rows import Run
from inferplan.validation.score import Scored
from tools.fitting.bands import weighted_quantiles
from tools.fitting.priced import FILES, priced_rows

SHARE = 0.8
"""The share of measured pairs whose ratio is predicted within the error on file."""
APART = 1.05
"""Figures whose ratio is nearer to one than this are equal: their order says nothing."""
FEWEST_PAIRS = 5
"""Fewer pairs say nothing of how far ratios are off."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """A run with what it makes: output tokens/s/GPU, measured (the mean over its days) and predicted; latencies in
    seconds, TTFT and TPOT."""

    run: Run
    measured: float
    predicted: float
    latencies: tuple[float, float]
    said: tuple[float, float]
    suspect: bool

    @property
    def model(self) -> str:
        """The catalogue's name."""
        return model_of(self.run.model).name


def configurations(scored: Iterable[Scored]) -> list[Configuration]:
    """The closed-loop runs with both latencies, each once; days of one run together."""
    found: dict[tuple[Run, bool], list[tuple[float, ...]]] = defaultdict(list)
    for one in scored:
        run, prediction, measured = one.row.run, one.prediction, one.row.measured
        if run is None or prediction is None or not run.closed:
            continue
        seen = [measured.at(name) for name in ("ttft", "tpot")]
        said = [prediction.at(name, measured.statistic) for name in ("ttft", "tpot")]
        values = [value for value in (*seen, *said) if value]
        if len(values) == 4:
            found[replace(run, suspect="", campaign=""), bool(one.suspect)].append(tuple(values))
    return [_configuration(run, suspect, values) for (run, suspect), values in found.items()]


def _configuration(run: Run, suspect: bool, values: Sequence[tuple[float, ...]]) -> Configuration:
    ttft, tpot, ttft_said, tpot_said = (float(value) for value in np.exp(np.mean(np.log(values), axis=0)))
    return Configuration(
        run=run,
        measured=output_rate(run, ttft, tpot),
        predicted=output_rate(run, ttft_said, tpot_said),
        latencies=(ttft, tpot),
        said=(ttft_said, tpot_said),
        suspect=suspect,
    )


def output_rate(run: Run, ttft: float, tpot: float) -> float:
    """Output tokens a second and GPU of a closed loop, by Little's law: users over the time of a request."""
    output = run.output * (1 + run.ratio_min) / 2
    return (run.concurrency or 1) * output / (ttft + (output - 1) * tpot) / run.devices


class Difference(NamedTuple):
    """One thing in which two runs may differ. hidden: the fields of a run that say it, and those that follow from it;
    level: what it is of a run, the simpler one lower; beside: what has to agree of those fields all the same."""

    hidden: tuple[str, ...]
    level: Callable[[Run], Any]
    beside: Callable[[Run], Any] = lambda run: None


_SAID_TWICE = ("precision", "warmup", "kernels", "engine_version")
"""Fields that differ between files of one campaign: the label of formats that are named one by one, and requests before
the first that counts. Of the release its candidates (``1.2.0rc4``) are one."""


def release(run: Run) -> tuple[str, str]:
    """Whose kernels a run has, and of which release; candidates and later builds of it are one, a build that is named
    otherwise is its own."""
    name, _, of_day = run.library.partition("@")
    stated = run.engine_version or of_day
    return name, release_number(stated) or stated


DIFFERENCES: Mapping[str, Difference] = {
    "expert parallelism": Difference(("ep", "spread"), lambda run: run.ep),
    "attention data parallelism": Difference(
        ("tp", "dp", "ep", "waits", "slots", "token_budget"),
        lambda run: run.dp,
        lambda run: (run.tp * run.dp, run.ep > 1, run.waits._replace(balance=0)),
    ),
    DRAFTS: Difference(("draft", "draft_tokens", "token_budget", "slots"), lambda run: run.draft_tokens or 0),
    POOLS: Difference(
        (
            *("prefill", "workers", "token_budget", "slots", "memory_fraction", "waits"),
            *("tp", "dp", "ep", "spread", "concurrency", "requests"),
        ),
        lambda run: run.prefill is not None,
        lambda run: round(np.log2((run.concurrency or 1) / run.devices)),
    ),
    "engine release": Difference((), release),
    "tensor parallelism": Difference(("tp",), lambda run: run.tp),
    "format": Difference(("weights", "experts", "kv", "activations"), lambda run: (run.label, run.kv or "")),
    "GPU": Difference(("gpu", "memory_fraction"), lambda run: run.gpu),
    "engine": Difference(("engine", "waits", "memory_fraction"), lambda run: run.engine),
}
"""By name. Those of :data:`FORMS` choose between forms of one deployment; the others are scored beside them."""
FORMS = ("expert parallelism", "attention data parallelism", DRAFTS, POOLS, "engine release")


class Pair(NamedTuple):
    """Logarithms of the ratio of the less simple over the simpler run, measured and predicted."""

    model: str
    system: str
    measured: float
    predicted: float
    suspect: bool

    @property
    def error(self) -> float:
        return self.predicted - self.measured

    @property
    def right(self) -> bool | None:
        """Whether the order is predicted; ``None`` where the measured figures are equal."""
        return None if abs(self.measured) <= np.log(APART) else self.measured * self.predicted > 0


def pairs(found: Iterable[Configuration], difference: Difference) -> Iterator[Pair]:
    """Every pair that differs in one thing."""
    groups: dict[tuple[object, ...], list[Configuration]] = defaultdict(list)
    for one in found:
        hidden = (*difference.hidden, *_SAID_TWICE)
        kept = [getattr(one.run, field.name) for field in fields(Run) if field.name not in hidden]
        own = None if difference.level is release or "engine" in hidden else release(one.run)
        groups[(*kept, own, difference.beside(one.run))].append(one)
    for group in groups.values():
        ordered = sorted(group, key=lambda one: difference.level(one.run))
        for simple, other in itertools.combinations(ordered, 2):
            if difference.level(simple.run) != difference.level(other.run):
                run = simple.run
                yield Pair(
                    model=simple.model,
                    system=f"{simple.model}, {run.gpu}, {run.engine}",
                    measured=float(np.log(other.measured / simple.measured)),
                    predicted=float(np.log(other.predicted / simple.predicted)),
                    suspect=simple.suspect or other.suspect,
                )


class Ratios(NamedTuple):
    """How well the ratios of some pairs are predicted. apart: pairs that differ; right: of those, ordered rightly.

    median, error, p90: quantiles of the size of predicted less measured, in logarithms, a system counted by the root of
    its number of pairs; ``error`` at :data:`SHARE`. bias: the median of the difference itself.
    """

    pairs: int
    models: int
    apart: int
    right: int
    median: float
    error: float
    p90: float
    bias: float

    @classmethod
    def of(cls, found: Sequence[Pair]) -> Ratios:
        """Those of one pair at the least."""
        errors: Array = np.array([one.error for one in found])
        told = [one.right for one in found if one.right is not None]
        sizes = Counter(one.system for one in found)
        weights = np.array([sizes[one.system] ** -0.5 for one in found])
        median, error, p90 = (float(e) for e in weighted_quantiles(np.abs(errors), weights, (0.5, SHARE, 0.9)))
        models = len({one.model for one in found})
        return cls(len(found), models, len(told), sum(told), median, error, p90, float(np.median(errors)))


class Rule(NamedTuple):
    """What the rule of :mod:`inferplan.planning.forms` does to pairs whose model its errors did not see.

    pairs: of which the figures differ; right, ruled: better form chosen by the prediction alone, and by the rule; lost,
    ruled_lost: the mean share of the better figure that is given away.
    """

    pairs: int
    right: int
    ruled: int
    lost: float
    ruled_lost: float

    @classmethod
    def of(cls, found: Sequence[Pair]) -> Rule | None:
        """Each model by the errors of the others; ``None`` where no others were measured."""
        chosen = []
        for one in found:
            others = [other for other in found if other.model != one.model]
            if one.right is not None and len(others) >= FEWEST_PAIRS:
                chosen.append((one.measured, one.predicted > 0, one.predicted > Ratios.of(others).error))
        if not chosen:
            return None
        better = np.array([measured > 0 for measured, _, _ in chosen])
        lost = np.array([1 - np.exp(-abs(measured)) for measured, _, _ in chosen])
        alone, ruled = (np.array([one[place] for one in chosen]) == better for place in (1, 2))
        return cls(
            pairs=len(chosen),
            right=int(np.count_nonzero(alone)),
            ruled=int(np.count_nonzero(ruled)),
            lost=float(np.mean(lost * ~alone)),
            ruled_lost=float(np.mean(lost * ~ruled)),
        )


def forms_yaml(found: Mapping[str, Ratios], command: str) -> str:
    """``configs/forms.yaml``: forms of enough pairs, with their errors as factors."""
    record = {
        "source": "pairs of closed-loop serving rows that differ in one thing and that no source doubts "
        "(docs/planning.md)",
        "provenance": {"command": command, "date": date.today().isoformat(), "share": SHARE},
        "forms": {
            name: {
                "error": float(f"{np.exp(one.error):.3f}"),
                "pairs": one.pairs,
                "models": one.models,
                "right": one.right,
                "apart": one.apart,
            }
            for name, one in found.items()
        },
    }
    head = "# Written by `python -m tools.fitting forms`: by how much a predicted ratio of two forms may be off.\n"
    return head + yaml.safe_dump(record, sort_keys=False, width=120)


@click.command("forms")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), default=config_root(), help="Folder of forms.yaml.")
def command(folder: Path, out: Path) -> None:
    """Fit the errors of predicted ratios of forms to pairs of measured rows of FOLDER (docs/planning.md)."""
    known = [one for one in configurations(priced_rows(folder)) if not one.suspect]
    found = {name: list(pairs(known, DIFFERENCES[name])) for name in FORMS}
    ratios = {name: Ratios.of(some) for name, some in found.items() if len(some) >= FEWEST_PAIRS}
    save(out / "forms.yaml", forms_yaml(ratios, f"python -m tools.fitting forms FOLDER ({', '.join(FILES)})"))
    for name, some in found.items():
        said = f"x {np.exp(ratios[name].error):.3f}" if name in ratios else "not known"
        click.echo(f"{name}: {said}, {len(some)} pairs")
