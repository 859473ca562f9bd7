"""The few constants that kernels do not tell, from closed-loop serving rows.

``python -m tools.fitting serving FILE.csv`` writes them. Every row is simulated under the flags of its run, so the
constants are what is left: the host of a step, launches, the eager floor of steps that hold prompts, the front end. All
are shared by all models, devices and engines; only the client of one campaign has a latency of its own. They are fitted
in the logarithm of measured over predicted, TTFT and TPOT alike, soft-L1, by Gauss-Newton steps inside physical bounds,
and judged on models that neither the fit nor any choice saw (:mod:`tools.fitting.choices`), on any GPU and engine.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import yaml

from inferplan.catalog.files import config_root
from inferplan.devices.constants import SharedStep, StepConstants
from inferplan.devices.engine import ServingConstants
from inferplan.errors import InferplanError, InputFileError
from inferplan.estimate.deployment import Deployment
from inferplan.files import save
from inferplan.serving.flags import with_flags
from inferplan.serving.launches import eager_floors
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.serving.step_times import Reach, StepTimes, step_times
from inferplan.units import Array
from inferplan.validation.deploy import bare_deployment_of, deployment_of
from inferplan.validation.importers import read_file
from inferplan.validation.predict import client_of, impossible, row_flags, row_request_time, row_traffic
from inferplan.validation.rows import Row, Run
from tools.fitting.choices import BY_NAME, CHOICES, SCRIPTS, Choice, deployment_without, run_without
from tools.fitting.unknowns import Unknown, pulled_step
from tools.fitting.unseen import unseen_csv

UNKNOWNS: dict[str, Unknown] = {
    "host": Unknown(0.6e-3, 1e-4, 3e-3, "seconds of a step: scheduling, inputs, sampling"),
    "launch": Unknown(0.75, 0.3, 1.0, "share of a kernel's overhead that is left inside a step"),
    "eager_layer": Unknown(4e-4, 5e-5, 1e-3, "host seconds of a layer in a step that holds prompts"),
    "latency": Unknown(15e-3, 1e-3, 6e-2, "seconds of a request between client and server"),
    "front_request": Unknown(1.5e-3, 1e-4, 5e-3, "serial seconds of the front end for a request"),
    "front_token": Unknown(1.5e-6, 1e-7, 5e-6, "serial seconds of the front end for a prompt token"),
    "client_latency": Unknown(3.5e-3, 5e-4, 2e-2, "latency of the fixed-length campaign's client"),
}
OWN_CLIENT = "fixed-length"
LIKE_OWN = ("open-loop",)
"""Clients of which nothing is known, taken to have the same latency."""
_STEP = ("host", "launch")
SEQUENCE = 10e-6
"""Seconds of a step for each sequence where no engine's own is on file: what is expected of it. Closed-loop rows hold
too few sequences to tell (:mod:`tools.fitting.published.host` fits rows that hold more)."""
_ENGINE = ("eager_layer", "latency", "front_request", "front_token")
ENGINES = ("atom", "vllm", "sglang", "trtllm")
"""Whose files hold the shared constants; of ATOM's rows none is in a fit."""
_NUDGE = 1.15
PULL = 5.0
"""How strongly a constant is held to what is expected of it: a factor e away costs as much as so many rows do that are
off by a factor e. Weaker pulls fit the rows they see better and unseen pairs worse (docs/accuracy.md)."""
_REACH = np.log(1.6)
"""How far one Gauss-Newton step may move a constant."""


KEPT_APART = frozenset(
    {
        ("gpt-oss-120b", "b200-hgx", "trtllm"),
        ("Kimi-K2.5", "b200-hgx", "vllm"),
        ("Llama-3.1-70B", "h200-sxm", "trtllm"),
        ("MiniMax-M2.5", "b200-hgx", "vllm"),
        ("Qwen3.5-397B-A17B", "b200-hgx", "sglang"),
        ("Qwen3.5-397B-A17B", "h200-sxm", "sglang"),
    }
)
"""Measured systems (model, GPU, engine) that no constant is fitted to: four whose rows were opened on 2026-11-23, and
two whose hosts took 4 ms for each layer with a state where a prompt is in the step, which no constant here stands for
(docs/serving.md): in a fit, launches of everybody would make up for it."""


def is_kept_apart(row: Row) -> bool:
    """Whether no fit takes a row."""
    return row.run is not None and (row.run.model, row.run.gpu, row.run.engine) in KEPT_APART


def usable(rows: Sequence[Row]) -> list[Row]:
    """Rows that a fit may see: closed loop, not suspect, of a known generator, not physically impossible."""
    found = []
    for row in rows:
        run = row.run
        if run is None or not run.closed or run.suspect or row.measured.ttft is None or row.measured.tpot is None:
            continue
        if client_of(run).start == "spread":
            continue
        try:
            deployment, _ = deployment_of(run)
        except InferplanError:
            continue
        if not impossible(deployment, run, row.measured):
            found.append(row)
    return found


def _structure(run: Run) -> tuple[object, ...]:
    """What step prices depend on."""
    formats = (run.precision, run.weights, run.experts, run.kv, run.activations)
    names = (run.model, run.gpu, run.engine, run.library, run.engine_version, run.backends)
    return (*names, *formats, run.tp, run.pp, run.ep, run.dp)


def _with_constants(deployment: Deployment, values: dict[str, float], campaign: str) -> Deployment:
    """The deployment under constants; its calibration must be without a step (:func:`bare_deployment_of`)."""
    step = StepConstants(sequence=SEQUENCE, **{name: values[name] for name in _STEP})
    shared = SharedStep(source="fit", step=step)
    update: dict[str, Any] = {name: values[name] for name in _ENGINE}
    if campaign == OWN_CLIENT:
        update["latency"] = values["client_latency"]
    serving = ServingConstants.model_construct(**{**dict(deployment.engine.serving), **update})
    engine = deployment.engine.model_copy(update={"serving": serving})
    return replace(deployment, calibration=deployment.calibration.with_step(shared), engine=engine)


def predict_group(rows: Sequence[Row], vectors: Sequence[dict[str, float]], undone: Sequence[str] = ()) -> Array:
    """TTFT and TPOT of rows of one structure under each vector of constants: (vectors, rows, 2), NaN where refused.

    undone: names of the choices without which they are priced.
    """
    runs = [run_without(row, undone) for row in rows]
    reach = Reach(
        sequences=max(run.concurrency or 1 for run in runs),
        tokens=int(max(max(run.token_budget or 16384, run.prompt) + (run.concurrency or 1) for run in runs)),
        context=int(max(run.prompt + run.output for run in runs)) + 1,
    )
    tables: dict[float, StepTimes] = {}
    result = np.full((len(vectors), len(rows), 2), np.nan)
    for index, values in enumerate(vectors):
        for column, (row, run) in enumerate(zip(rows, runs)):
            bare = deployment_without(row, bare_deployment_of(run), undone)
            deployment = with_flags(_with_constants(bare, values, run.campaign), row_flags(run))
            if values["launch"] not in tables:
                tables[values["launch"]] = step_times(deployment, reach)
            prices = replace(
                tables[values["launch"]],
                host=deployment.step.host,
                host_sequence=deployment.step.sequence,
                floors=eager_floors(deployment),
                graph_floors=eager_floors(deployment, replayed=True),
                cache={},
            )
            try:
                ramp = row_request_time(deployment, run) if client_of(run).start == "spread" else 0.0
                found = simulate(deployment, row_traffic(run, ramp), row_flags(run), Options(warmup=run.warmup), prices)
            except InferplanError:
                continue
            if len(found.ttft) and len(found.tpot):
                result[index, column] = float(np.mean(found.ttft)), float(np.mean(found.tpot))
    return result


def predict_all(rows: Sequence[Row], vectors: Sequence[dict[str, float]], undone: Sequence[str] = ()) -> Array:
    """:func:`predict_group` for rows of any structure, on all cores."""
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        groups[_structure(run_without(row, undone))].append(index)
    order = sorted(groups.values(), key=len, reverse=True)
    result = np.full((len(vectors), len(rows), 2), np.nan)
    with ProcessPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        members = [[rows[i] for i in group] for group in order]
        parts = pool.map(predict_group, members, [vectors] * len(order), [undone] * len(order))
        for group, part in zip(order, parts):
            result[:, group] = part
    return result


@dataclass(frozen=True, kw_only=True, eq=False)
class Linearised:
    """Log errors of rows around constants, and how they change with the logarithm of each."""

    at: dict[str, float]
    error: Array
    slope: Array
    weight: Array
    """Of each row: the root of one over the rows of its pair, so that no pair decides alone; the mean is one."""

    def step(self, chosen: npt.NDArray[np.bool_]) -> dict[str, float]:
        """The constants that fit the ``chosen`` rows best, at most a factor away and inside their bounds."""
        weight = np.sqrt(self.weight[chosen, None])
        error, slope = (self.error[chosen] * weight).ravel(), self.slope[chosen] * weight[..., None]
        at = [self.at[name] for name in UNKNOWNS]
        found = pulled_step(list(UNKNOWNS.values()), at, error, slope.reshape(-1, len(at)), PULL, _REACH)
        values = {name: float(value) for name, value in zip(UNKNOWNS, found)}
        return {name: min(max(value, UNKNOWNS[name].low), UNKNOWNS[name].high) for name, value in values.items()}


def linearise(rows: Sequence[Row], at: dict[str, float]) -> Linearised:
    """Simulate the rows at constants, and with each of them a little larger; smaller where that is out of bounds."""
    nudges = [_NUDGE if at[name] * _NUDGE <= unknown.high else 1 / _NUDGE for name, unknown in UNKNOWNS.items()]
    vectors = [at] + [{**at, name: at[name] * nudge} for name, nudge in zip(UNKNOWNS, nudges)]
    found = np.log(predict_all(rows, vectors))
    slope = (found[1:] - found[0]) / np.log(nudges)[:, None, None]
    sizes = Counter(row.run.pair for row in rows if row.run)
    weight = np.array([sizes[row.run.pair] ** -0.5 if row.run else 0.0 for row in rows])
    return Linearised(
        at=at, error=found[0] - log_measured(rows), slope=np.moveaxis(slope, 0, -1), weight=weight / weight.mean()
    )


@dataclass(frozen=True, kw_only=True)
class Fold:
    """What the rows of all models but one say: the constants, and the choices that they do not make."""

    constants: dict[str, float]
    undone: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class ServingFit:
    """Constants from all usable rows, and what is said of each model by the rows of the others."""

    constants: dict[str, float]
    folds: dict[str, Fold]
    """By the model that was left out, on all GPUs and engines."""
    decided: dict[str, Counter[str]]
    """By choice the rows that decided it, by model."""
    used: list[Row]
    """The rows of the fit."""
    rows: list[Row]
    """Every closed-loop row, suspect ones and those that no fit takes too."""
    unseen: Array
    """TTFT and TPOT of those rows from the fold of their model."""
    scripted: Array
    """The same where the flags of run scripts are known."""


def fit_serving(rows: Sequence[Row], rounds: int = 1, every: int = 1) -> ServingFit:
    """Fit on the usable rows that are not kept apart (each ``every``-th), and predict every row from other models."""
    seen = [row for row in usable(rows) if not is_kept_apart(row)][::every]
    if not seen:
        raise InputFileError("no row that a fit may see", hint="closed-loop rows with TTFT and TPOT, not suspect")
    at = {name: unknown.start for name, unknown in UNKNOWNS.items()}
    everything = np.ones(len(seen), dtype=bool)
    for _ in range(rounds - 1):
        at = linearise(seen, at).step(everything)
    around = linearise(seen, at)
    scored = [row for row in rows if row.run is not None and row.run.closed]
    models = [row.run.model if row.run else "" for row in seen]
    constants = around.step(everything)
    fitted = replace(around, at=constants, error=np.log(predict_all(seen, [constants])[0]) - log_measured(seen))
    gains = {choice.name: _gains(seen, choice, fitted) for choice in CHOICES}
    folds = {
        model: Fold(
            constants=around.step(np.array([other != model for other in models])),
            undone=tuple(one.name for one in CHOICES if one.keyed or _undone(gains[one.name], models, model)),
        )
        for model in sorted({row.run.model for row in scored if row.run})
    }
    unseen = predict_folds(scored, folds)
    scripted = unseen.copy()
    told = [place for place, row in enumerate(scored) if BY_NAME[SCRIPTS].concerns(row)]
    known = {
        model: replace(fold, undone=tuple(name for name in fold.undone if name != SCRIPTS))
        for model, fold in folds.items()
    }
    scripted[told] = predict_folds([scored[place] for place in told], known)
    return ServingFit(
        constants=constants,
        folds=folds,
        decided={name: Counter(models[place] for place in gain) for name, gain in gains.items()},
        used=seen,
        rows=scored,
        unseen=unseen,
        scripted=scripted,
    )


def predict_folds(rows: Sequence[Row], folds: Mapping[str, Fold]) -> Array:
    """TTFT and TPOT of rows, each from the fold of its model: (rows, 2)."""
    found = np.full((len(rows), 2), np.nan)
    for model, fold in folds.items():
        members = [place for place, row in enumerate(rows) if row.run and row.run.model == model]
        if members:
            found[members] = predict_all([rows[place] for place in members], [fold.constants], fold.undone)[0]
    return found


def _gains(seen: Sequence[Row], choice: Choice, fitted: Linearised) -> dict[int, float]:
    """By the place of each row that a choice concerns, by how much it brings the row's logarithms nearer to what was
    measured, both latencies together and weighted as in the fit."""
    places = [place for place, row in enumerate(seen) if choice.concerns(row)]
    if not places:
        return {}
    rows = [seen[place] for place in places]
    without = np.log(predict_all(rows, [fitted.at], (choice.name,))[0]) - log_measured(rows)
    gained = np.nansum(np.abs(without) - np.abs(fitted.error[places]), axis=1) * fitted.weight[places]
    return dict(zip(places, map(float, gained)))


def _undone(gain: Mapping[int, float], models: Sequence[str], left_out: str) -> bool:
    """Whether the rows of the other models do not ask for a choice: none of them is concerned, or it helps them not."""
    return not sum(value for place, value in gain.items() if models[place] != left_out) > 0


def log_measured(rows: Sequence[Row]) -> Array:
    """The logarithms of measured TTFT and TPOT: (rows, 2)."""
    return np.log([[row.measured.ttft or np.nan, row.measured.tpot or np.nan] for row in rows])


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def step_yaml(fit: ServingFit, command: str) -> str:
    """``configs/step.yaml``."""
    spread = {
        name: [_rounded(end(fold.constants[name] for fold in fit.folds.values())) for end in (min, max)]
        for name in UNKNOWNS
    }
    record = {
        "source": "closed-loop serving rows; few constants, shared by all models, devices and engines; sequence is "
        "what is expected, engines whose own was measured have it in engines/*.yaml",
        "provenance": {
            "command": command,
            "date": date.today().isoformat(),
            "rows": len(fit.used),
            "pairs": len({row.run.pair for row in fit.used if row.run}),
            "range_over_folds": spread,
            "decided": {
                choice.name: {
                    "where": choice.where,
                    "otherwise": choice.otherwise,
                    "rows": dict(sorted(fit.decided[choice.name].items())),
                    "undone_without": [model for model, fold in fit.folds.items() if choice.name in fold.undone],
                }
                for choice in CHOICES
            },
        },
        "step": {"sequence": SEQUENCE, **{name: _rounded(fit.constants[name]) for name in _STEP}},
    }
    head = "# Written by `python -m tools.fitting serving`; how far off it is stands in docs/accuracy.md.\n"
    return head + yaml.safe_dump(record, sort_keys=False, width=120)


_UNITS = (("eager_layer", "us", 1e6), ("latency", "ms", 1e3), ("front_request", "us", 1e6), ("front_token", "us", 1e6))


def write_engines(root: Path, constants: dict[str, float]) -> None:
    """Put the constants of the front end and of eager steps into ``engines/*.yaml``, and the client's into its file."""
    for engine in ENGINES:
        path = root / "engines" / f"{engine}.yaml"
        text = path.read_text(encoding="utf-8")
        for name, unit, scale in _UNITS:
            value = f"{_rounded(constants[name] * scale):g} {unit}".strip()
            # those of the engine, in its block; a release may have its own, which no such row decides
            text, count = re.subn(rf"(?m)^(serving:\n(?: .*\n)*?  {name}: ).*$", rf"\g<1>{value}", text)
            if count != 1:
                raise InputFileError(f"{path} has no {name} in serving:")
        save(path, text)
    path = root / "clients.yaml"
    text = path.read_text(encoding="utf-8")
    value = f"{_rounded(constants['client_latency'] * 1e3):g} ms"
    for client in (OWN_CLIENT, *LIKE_OWN):
        text, count = re.subn(rf"(?ms)^({client}:\n.*?^  latency: ).*?$", rf"\g<1>{value}", text, count=1)
        if count != 1:
            raise InputFileError(f"{path} has no latency of {client}")
    save(path, text)


def main(path: Path, root: Path, every: int = 1) -> ServingFit:
    """Fit, write ``step.yaml``, ``clients.yaml`` and ``engines/*.yaml`` under ``root``, and give the fit."""
    fit = fit_serving(read_file(path, {})[1], every=every)
    command = f"python -m tools.fitting serving {path.name}" + (f" --every {every}" if every > 1 else "")
    (root / "step.yaml").write_text(step_yaml(fit, command), encoding="utf-8")
    write_engines(root, fit.constants)
    return fit


FILE = click.Path(path_type=Path)


@click.command("serving")
@click.argument("file", type=FILE)
@click.option("--out", type=FILE, default=config_root(), help="Folder of step.yaml and engines/.  [default: configs]")
@click.option("--every", type=int, default=1, show_default=True, help="Fit to every n-th usable row.")
@click.option("--unseen", type=FILE, help="Write the rows with what the rows of other models predict for them.")
def command(file: Path, out: Path, every: int, unseen: Path | None) -> None:
    """Fit the constants of a step that kernels do not tell to the closed-loop rows of FILE (docs/validate.md)."""
    fit = main(file, out, every)
    if unseen:
        unseen.write_text(unseen_csv(fit.rows, fit.unseen, fit.scripted), encoding="utf-8")
    for name, unknown in UNKNOWNS.items():
        low, high = (f(fold.constants[name] for fold in fit.folds.values()) for f in (min, max))
        click.echo(f"{name:15s} {fit.constants[name]:10.3g}  folds {low:.3g} to {high:.3g}  ({unknown.meaning})")
    for model, fold in fit.folds.items():
        values = ", ".join(f"{name} {value:.3g}" for name, value in fold.constants.items())
        click.echo(f"without {model}: {values}; not {', '.join(fold.undone)}")
