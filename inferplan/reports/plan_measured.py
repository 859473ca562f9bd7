"""A plan beside what its service did: the measurement in the plan's own file, and the verdict on it."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from math import inf
from pathlib import Path
from typing import Annotated, Any

from inferplan.catalog.files import find
from inferplan.errors import InfeasibleError, InferplanError, InputFileError, SpecError, UsageError
from inferplan.figures import Figure, side_by_side, text
from inferplan.figures import record as figures_record
from inferplan.files import LARGEST_SPEC, read_text
from inferplan.measuring.figures import load_figures
from inferplan.measuring.planned import PlannedLoad
from inferplan.measuring.server import Server
from inferplan.measuring.session import MeasuredLoad, Session
from inferplan.planning.demand import Demand
from inferplan.reports.plan_file import checked_part, plan_json, planned_of
from inferplan.reports.plan_load import planned_demand, planned_load
from inferplan.serving.batch_means import half_width
from inferplan.spec import Field, Spec
from inferplan.table import Report
from inferplan.units import format_time
from inferplan.validation.as_planned import AsPlanned, all_as_planned
from inferplan.validation.names import catalogue_name
from inferplan.validation.score import NAMES

_LATENCIES = ("ttft", "tpot", "e2el")
_UNLIKE, _UNLIKE_DRAWN = 0.1, 0.25
"""By how much a mean of what was measured may differ from the plan's, and that of lengths that are drawn: their mean
over some hundreds of requests has an error of its own."""


Above = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=0)]


class _Latencies(Spec):
    """Seconds of each latency."""

    model_config = {"strict": True}

    ttft_s: Above | None = None
    tpot_s: Above | None = None
    e2el_s: Above | None = None


class _Measurement(_Latencies):
    """One of ``measurements`` of a plan's JSON."""

    at: str
    url: str
    replicas: Annotated[int, Field(ge=1)]
    requests: Whole
    failed: Whole
    percentile: Above
    prompt_tokens: Above
    output_tokens: Above
    requests_per_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    half_width_s: dict[str, float | None] = {}
    suspect: list[str] = []
    server: dict[str, str] = {}


class _Limits(_Latencies):
    """``question.slo``, as far as it is measured."""

    model_config = {"extra": "ignore"}


class _Quoted(_Limits):
    """``plan``: what it quotes, and of how many replicas."""

    replicas: Annotated[int, Field(ge=1)]


Ends = Annotated[list[Above | None], Field(min_length=2, max_length=2)]


class _Bands(Spec):
    """``band_s``: seconds from and to; no end where the slow devices are overloaded."""

    model_config = {"strict": True, "extra": "ignore"}

    ttft_s: Ends | None = None
    tpot_s: Ends | None = None
    e2el_s: Ends | None = None


class _Asked(Spec):
    """``question``, as far as a measurement is held to it."""

    model_config = {"strict": True, "extra": "ignore"}

    percentile: Annotated[float, Field(gt=0, lt=100)]
    slo: _Limits


class PlanFile:
    """The JSON of a plan: question, plan, what starts it, and what was measured of it.

    Raises ``SpecError`` for a file that is none, of another version, or without the load that it was planned for;
    ``UsageError`` for a load that is not sent, or without a limit that is measured.
    """

    def __init__(self, path: str) -> None:
        self.path, self.data = path, plan_json(path)
        self.planned = planned_of(self.data, path)
        self.demand: Demand = planned_demand(self.data, path)
        asked = checked_part(path, _Asked, self.data["question"], "question")
        plan = checked_part(path, _Quoted, self.data["plan"], "plan")
        bands = checked_part(path, _Bands, self.data.get("band_s", {}), "band_s")
        self.percentile, self.replicas = asked.percentile, plan.replicas
        self.limits, self.quoted = _by_latency(asked.slo), _by_latency(plan)
        self.bands = {name: (low or 0.0, high or inf) for name, (low, high) in _by_latency(bands).items()}
        if not self.limits:
            raise UsageError(f"{path} has no limit that can be measured", hint="a plan with --ttft, --tpot or --e2e")
        deployed = self.planned.request.parallel.replicas if self.planned.pools is None else self.replicas
        wrong = [f"plan.{name}_s is missing" for name in self.limits if name not in self.quoted]
        wrong += [f"band_s.{name}_s falls" for name, (low, high) in self.bands.items() if low > high]
        if deployed != self.replicas:
            wrong.append(f"plan.replicas is {self.replicas}, that of plan.deployment {deployed}")
        for one in self.measurements:  # (read here, so that what is wrong with them is said before a load is sent)
            if one.percentile != self.percentile:
                wrong.append(f"a measurement has percentile {one.percentile:g}, the plan {self.percentile:g}")
        if wrong:
            raise SpecError(f"{path} contradicts itself", because="; ".join(wrong), hint="make the plan again")

    @property
    def answer(self) -> float:
        """Seconds of a request, as planned: at the percentile, which is no less than the mean."""
        return float(self.quoted.get("e2el", 0.0))

    @property
    def measurements(self) -> list[_Measurement]:
        """Those in the file, in order."""
        stated = self.data.get("measurements", [])
        if not isinstance(stated, list):
            raise SpecError(f"{self.path} is not the JSON of a plan: measurements is no list")
        return [checked_part(self.path, _Measurement, one, f"measurements.{i}") for i, one in enumerate(stated)]

    @property
    def facts(self) -> dict[str, str]:
        """What is deployed, by the columns of ``validate``."""
        deployment, parallel = self.data["plan"]["deployment"], self.planned.request.parallel
        engine, _, version = str(deployment["engine"]).partition(" ")
        degrees = {name: str(getattr(parallel, name)) for name in ("tp", "pp", "ep", "dp")}
        return {"model": deployment["model"], "gpu": deployment["gpu"], "engine": engine, "engine_version": version} | {
            **degrees,
            "precision": deployment["quant"] or "native",
        }

    def load(self, replicas: int, requests: int | None) -> PlannedLoad:
        """The load of so many of its replicas; requests: how many, ``None`` for as many as the percentile takes.

        Raises ``UsageError`` for a number of them that the load is not divided by.
        """
        if replicas > self.replicas or self.replicas % replicas or (replicas < self.replicas and self.planned.pools):
            raise UsageError(
                f"--replicas {replicas} of the {self.replicas} of {self.path}",
                because="a load is divided among replicas fed in turn, and pools are measured whole",
                hint="a divisor, or leave it out: the address stands before all of them",
            )
        return planned_load(self.demand, self.replicas // replicas, self.answer, (self.percentile, requests))

    def with_measurement(self, found: Mapping[str, Any]) -> PlanFile:
        """The same plan with another measurement."""
        whole = copy(self)
        whole.data = {**self.data, "measurements": [*self.data.get("measurements", []), dict(found)]}
        return whole

    def judged(self, one: _Measurement) -> list[AsPlanned]:
        """Each limited latency of a measurement. Raises ``InputFileError`` for one without a limited latency."""
        found = []
        for name, limit in self.limits.items():
            measured = getattr(one, f"{name}_s")
            if measured is None:
                raise InputFileError(f"{one.url} was measured without {NAMES[name]}", hint="measure again")
            found.append(
                AsPlanned(
                    name=name,
                    planned=self.quoted[name],
                    measured=measured,
                    error=one.half_width_s.get(name),
                    limit=limit,
                    band=self.bands.get(name),
                )
            )
        return found

    def require_own(self, facts: Mapping[str, str], where: str) -> None:
        """Raise ``InputFileError`` for what is measured of something else, as far as ``facts`` say of what."""
        for name, own in self.facts.items():
            other = "" if name == "engine_version" else facts.get(name, "")
            if name in ("model", "gpu"):
                other = catalogue_name("models" if name == "model" else "hardware", other)
            if other and other.lower() != own.lower():
                raise InputFileError(
                    f"{where} measures another deployment than {self.path}",
                    because=f"{name} {other}, and {own} was planned",
                    hint="inferplan measure PLAN.json --url URL measures the deployment of the plan",
                )

    def unlike(self, server: Server | None) -> str:
        """That a server has another model than was planned, where it says so by a name that is on file; else empty."""
        own = self.facts["model"]
        for name in () if server is None else (server.source, server.model):
            with suppress(InferplanError):
                served = find("models", name).stem
                return "" if served == own else f"the server has {name} ({served}), and {own} was planned"
        return ""

    def require_load(self, one: _Measurement, users: float | None) -> None:
        """Raise ``InputFileError`` for a measurement under another load, as far as its means and ``users`` say."""
        demand = self.demand
        prompt = demand.prompt.average + demand.prefix.tokens
        lengths = [_UNLIKE if one.kind == "fixed" else _UNLIKE_DRAWN for one in (demand.prompt, demand.output)]
        pairs = {
            "prompt tokens": (one.prompt_tokens, prompt, lengths[0]),
            "output tokens": (one.output_tokens, demand.output.average, lengths[1]),
        }
        if demand.rate is not None:
            pairs["requests/s"] = one.requests_per_s, demand.rate * one.replicas / self.replicas, _UNLIKE
        if demand.users is not None and users is not None:
            pairs["users"] = users, demand.users * one.replicas / self.replicas, _UNLIKE
        for what, (measured, planned, most) in pairs.items():
            if abs(measured / planned - 1.0) > most:
                raise InputFileError(
                    f"{one.url} was measured under another load than {self.path}",
                    because=f"{measured:,.4g} {what}, and {planned:,.4g} were planned",
                    hint="inferplan measure PLAN.json --url URL sends the plan's load",
                )


def is_plan(path: str) -> bool:
    """Whether a file is the JSON of a plan, by its keys; false where it cannot be read."""
    if not path.lower().endswith(".json"):
        return False
    try:
        data = plan_json(path)
    except (InputFileError, SpecError):
        return False
    return isinstance(data.get("plan"), dict) and isinstance(data.get("question"), dict)


def measurement(session: Session, plan: PlanFile, load: PlannedLoad, at: str, replicas: int) -> dict[str, Any] | None:
    """What a run of the plan's load came to, as the plan's JSON keeps it; ``None`` without figures."""
    if not session.loads:
        return None
    measured = session.loads[-1]
    found = load_figures(measured)
    if found is None:
        return None
    latencies, errors = _latencies(measured, plan.percentile)
    server, doubts = session.server, list(measured.suspect)
    if other := plan.unlike(server):
        doubts.append(other)
    rate = _rate(measured)
    prompts, outputs = load.prompts[load.fill :], load.outputs[load.fill :]
    means = {
        "prompt tokens": (found.isl, sum(prompts) / len(prompts) + load.head_tokens),
        "output tokens": (found.osl, sum(outputs) / len(outputs)),
    }
    if load.arrivals:
        means["requests/s"] = rate, load.requests / load.seconds
    for what, (got, drawn) in means.items():
        if abs(got / drawn - 1.0) > _UNLIKE:
            doubts.append(f"{got:,.4g} {what} were measured, and {drawn:,.4g} were planned")
    if found.requests * (1 - plan.percentile / 100) < 1:
        doubts.append(f"{found.requests:,} requests hold no {plan.percentile:g}th percentile")
    return {
        "at": at,
        "url": session.settings.address.root,
        "server": {} if server is None else {"model": server.model, "engine": server.engine, "version": server.version},
        "replicas": replicas,
        "requests": found.requests,
        "failed": found.failed,
        "percentile": plan.percentile,
        "prompt_tokens": found.isl,
        "output_tokens": found.osl,
        "requests_per_s": rate,
        **{f"{name}_s": latencies.get(name) for name in _LATENCIES},
        "half_width_s": errors,
        "suspect": doubts,
    }


def _latencies(measured: MeasuredLoad, percentile: float) -> tuple[dict[str, float], dict[str, float | None]]:
    """Each latency at a percentile in seconds, and half the width of its 95 % confidence interval."""
    import numpy as np

    good = measured.judged
    values = {
        "ttft": [one.ttft for one in good],
        "tpot": [tpot for one in good if (tpot := one.tpot) is not None],
        "e2el": [one.e2el for one in good],
    }
    known = {name: np.asarray(found) for name, found in values.items() if found}
    return (
        {name: float(np.percentile(found, percentile)) for name, found in known.items()},
        {name: half_width(found, percentile) for name, found in known.items()},
    )


def _rate(measured: MeasuredLoad) -> float:
    """Requests a second that were sent, whatever became of them."""
    sent = sorted(one.sent for one in measured.replies)
    return (len(sent) - 1) / (sent[-1] - sent[0]) if len(sent) > 1 and sent[-1] > sent[0] else 0.0


def nothing_measured(plan: PlanFile) -> Report:
    """The plan as it was: no request had a reply with figures."""
    return Report(record=dict(plan.data), tables=[], notes=["nothing was measured: no load has figures"])


def measurements_of(files: Sequence[str]) -> tuple[PlanFile, list[_Measurement]]:
    """A plan and what further files have measured of it (a copy of the plan with measurements, or rows of a CSV); its
    own measurements where it stands alone. Raises ``InputFileError`` for none.
    """
    plan, *others = files
    held = PlanFile(plan)
    found = [] if others else list(held.measurements)
    for path in others:
        if not is_plan(path):
            found += rows_as_measurements(path, held)
            continue
        other = PlanFile(path)
        held.require_own(other.facts, path)
        if other.data["question"]["load"] != held.data["question"]["load"] or other.percentile != held.percentile:
            raise InputFileError(
                f"{path} was measured under another load than {plan}",
                because="its own plan is for another",
                hint=f"inferplan measure {plan} --url URL sends the load of the plan",
            )
        found += other.measurements
    if not found:
        raise InputFileError(
            f"{others[0] if others else plan} holds no measurement of a plan",
            hint=f"inferplan measure {plan} --url http://localhost:8000 -o measured.json",
        )
    return held, found


def rows_as_measurements(path: str, plan: PlanFile) -> list[_Measurement]:
    """The rows of a CSV of ``measure`` as measurements of a plan. Raises ``InputFileError`` without the percentile."""
    lines = list(csv.DictReader(io.StringIO(read_text(Path(path), LARGEST_SPEC))))
    wanted = "median" if plan.percentile == 50 else f"p{plan.percentile:g}"
    found = []
    for number, line in enumerate(lines, 2):
        plan.require_own({name: line.get(name) or "" for name in ("model", "gpu", "engine")}, f"{path}: line {number}")
        cells = {name: _number(line.get(f"{name}_{wanted}_ms")) for name in _LATENCIES}
        if odd := [f"{name}_{wanted}_ms {ms:g}" for name, ms in cells.items() if ms is not None and not 0.0 < ms < inf]:
            raise InputFileError(f"{path}: line {number} has no time", because=", ".join(odd), hint="milliseconds")
        if all(cells[name] is None for name in plan.limits):
            raise InputFileError(
                f"{path}: line {number} has no {', '.join(f'{name}_{wanted}_ms' for name in plan.limits)}",
                because=f"the plan limits the {plan.percentile:g}th percentile",
                hint="inferplan measure PLAN.json --url URL --out FILE.csv",
            )
        rate = _number(line.get("rate_per_s")) or 0.0
        seconds: dict[str, Any] = {f"{name}_s": None if ms is None else ms / 1e3 for name, ms in cells.items()}
        users = _number(line.get("concurrency"))
        one = _Measurement(
            at="",
            url=f"{path}: line {number}",
            replicas=_replicas_of(rate, users, plan),
            requests=int(_number(line.get("requests")) or 0),
            failed=int(_number(line.get("failed_requests")) or 0),
            percentile=plan.percentile,
            prompt_tokens=_tokens(line, "isl", path, number),
            output_tokens=_tokens(line, "osl", path, number),
            requests_per_s=rate,
            suspect=[cell] if (cell := line.get("suspect") or "") else [],
            **seconds,
        )
        plan.require_load(one, users)
        found.append(one)
    return found


def _number(cell: str | None) -> float | None:
    try:
        return float(cell) if cell else None
    except ValueError:
        return None


def _tokens(line: Mapping[str, str | None], column: str, path: str, number: int) -> float:
    found = _number(line.get(column))
    if found is None or not 0.0 < found < inf:
        raise InputFileError(
            f"{path}: line {number} has no {column}", hint="mean tokens: isl of prompts, osl of outputs"
        )
    return found


def _by_latency(part: Spec) -> dict[str, Any]:
    """The latencies that a part states."""
    found = {name: getattr(part, f"{name}_s") for name in _LATENCIES}
    return {name: value for name, value in found.items() if value is not None}


def _replicas_of(rate: float, users: float | None, plan: PlanFile) -> int:
    """How many of the plan's replicas a rate, or so many users, are the share of: the nearest whole number."""
    whole, part = (plan.demand.rate, rate) if plan.demand.users is None else (plan.demand.users, users)
    return plan.replicas if whole is None or part is None else max(round(part / whole * plan.replicas), 1)


def verdict_report(plan: PlanFile, found: Sequence[_Measurement], record: Mapping[str, Any] | None = None) -> Report:
    """Each measurement beside the plan. record: the JSON of the report, where it is a plan with its measurements."""
    judged = [plan.judged(one) for one in found]
    tables = [
        side_by_side(_title(plan, one, latencies), [_row(latency, plan.percentile) for latency in latencies])
        for one, latencies in zip(found, judged)
    ]
    verdicts = [
        {
            "url": one.url,
            "at": one.at or None,
            "as_planned": all_as_planned(latencies) and not one.suspect,
            "suspect": one.suspect,
            "latencies": [figures_record(_row(latency, plan.percentile)) for latency in latencies],
        }
        for one, latencies in zip(found, judged)
    ]
    notes = [note for one in found for note in _notes(plan, one)]
    own = {"verdicts": verdicts}
    return Report(
        record=own if record is None else {**record, **own},
        tables=tables,
        headline="; ".join(table.title for table in tables),
        rows=[
            {"url": one.url, **figures_record(_row(latency, plan.percentile))}
            for one, latencies in zip(found, judged)
            for latency in latencies
        ],
        notes=notes,
    )


def _title(plan: PlanFile, one: _Measurement, latencies: Sequence[AsPlanned]) -> str:
    verdict = "no verdict" if one.suspect else "as planned" if all_as_planned(latencies) else "not as planned"
    share = "" if one.replicas == plan.replicas else f" on {one.replicas} of {plan.replicas} replicas"
    many = f", {one.requests:,} requests of the plan's load" if one.requests else ""
    return f"{verdict}: {one.url}{share}{many}"


def _row(one: AsPlanned, percentile: float) -> list[Figure]:
    low, high = one.band or (None, None)
    band = "unknown" if one.band is None else f"{format_time(one.band[0])} to {format_time(one.band[1])}"
    return [
        Figure("metric", one.name, f"p{percentile:g}", text=NAMES[one.name], left=True),
        Figure("planned_s", one.planned, "planned", format_time),
        Figure("band_low_s", low),
        Figure("band_high_s", high),
        text("80 % band", band),
        Figure("limit_s", one.limit, "limit", format_time),
        Figure("measured_s", one.measured, "measured", format_time),
        Figure("half_width_s", one.error, "+-", format_time),
        Figure("measured_over_planned", one.ratio, "measured / planned", ".3f"),
        Figure("verdict", one.words, "", left=True),
    ]


def _notes(plan: PlanFile, one: _Measurement) -> list[str]:
    found = [f"suspect: {why}" for why in one.suspect]
    if one.failed:
        found.append(f"{one.failed} of {one.requests + one.failed} requests failed, and are left out of all figures")
    if any(value is None for value in one.half_width_s.values()):
        found.append(f"{one.requests:,} requests are too few for the error of a {plan.percentile:g}th percentile")
    return found


def require_as_planned(plan: PlanFile, found: Sequence[_Measurement]) -> None:
    """Raise ``InfeasibleError`` where a measurement is not as planned, by how much, or is suspect."""
    for one in found:
        off = [latency for latency in plan.judged(one) if not latency.good]
        if off:
            raise InfeasibleError(
                f"not as planned: {one.url}",
                because="; ".join(
                    f"{NAMES[latency.name]} {format_time(latency.measured)}, planned {format_time(latency.planned)} "
                    f"(x {latency.ratio:.2f}, {latency.words})"
                    for latency in off
                ),
                hint="inferplan anchor fit corrects the next plan by what was measured; docs/measure.md",
            )
        if one.suspect:
            raise InfeasibleError(f"no verdict on {one.url}", because=one.suspect[0], hint="measure again")
