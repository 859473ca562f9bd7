"""What GPUs that somebody has hold, as tables and JSON."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from inferplan.answers.division import RULE
from inferplan.answers.fit import FitOption, requests_in_words
from inferplan.answers.fit_owned import OwnedFits
from inferplan.figures import Figure, record, side_by_side, text
from inferplan.models.spec import uncounted_notes
from inferplan.reports.fit import (
    SPARE,
    device_lines,
    engine_notes,
    engines_of,
    load_record,
    load_tables,
    log_lines,
    of_people,
    option_figures,
    quality_notes,
)
from inferplan.table import Report
from inferplan.units import format_time


def owned_report(found: OwnedFits) -> Report:
    """A line for each GPU and format that holds the load, most requests first; then why the others do not."""
    spec, asked = found.model, found.asked
    fitting = sorted(found.fitting, key=lambda one: -(one.fitting.requests if one.fitting else 0))
    records = [_record(option) for option in found.options]
    hidden = {"GPUs"} if any(option.bill for option in fitting) else {"GPUs", "per hour", "price of"}
    hidden |= set() if len({engines_of([option]) for option in fitting}) > 1 else {"engine"}
    hidden |= set() if any(option.tpot for option in fitting) else {"TPOT"}
    held = "what it holds" if found.count == 1 else "what they hold together"
    title = f"{spec.name} on {found.have}: {held}, for {asked.held:,} x {found.context:,} tokens"
    report = Report(
        record={
            "model": spec.name,
            "model_counts": spec.made_from.to_dict(),
            "model_notes": uncounted_notes(spec),
            "have": found.have,
            "devices": found.count,
            "context_tokens": found.context,
            "load": load_record(asked),
            "options": records,
        },
        tables=[
            *load_tables(asked, found.context),
            side_by_side(
                f"{title} ({engines_of(fitting)} defaults)", [_figures(option, hidden) for option in fitting], SPARE
            ),
        ],
        notes=[
            *_times(found),
            *dict.fromkeys(_refused(option) for option in found.options if option.fitting is None),
            *dict.fromkeys(_roomier(option) for option in fitting if option.roomier is not None),
            "requests: how many fit at once, each with the tokens above",
            *_logged(fitting),
            *quality_notes(spec, found.options, asked),
            spec.made_from.line,
            *(f"note: {line}" for line in uncounted_notes(spec)),
            *dict.fromkeys(filter(None, (one.fitting.deployment.formats_note for one in fitting if one.fitting))),
            *device_lines(fitting),
            *found.remarks,
        ],
        rows=records,
        of=found,
    )
    return of_people(report, asked)


def _times(found: OwnedFits) -> list[str]:
    """How the engine of each format is chosen, and what its time is of."""
    load = requests_in_words(found.asked.held, found.context)
    bases = dict.fromkeys(option.basis for option in found.fitting if option.basis)
    other = "for another: --engine NAME"
    engines = [f"engine: of {' and '.join(found.engines)}, {RULE}; {other}"] if len(found.engines) > 1 else []
    if not engines and not found.asked.engine:
        engines = engine_notes(found.fitting) or [f"engine: {found.engines[0]}, the usual one there; {other}"]
    if not bases:
        return engines
    constants = f"{' and '.join(bases)} constants; their error: inferplan estimate"
    deployments = [option.fitting.deployment for option in found.fitting if option.fitting]
    links = dict.fromkeys(one.hardware.bridge_line(one.parallel.ranks) for one in deployments)
    priced = [f"{line} (an option of inferplan estimate)" for line in links if line]
    return [*engines, f"TPOT: predicted for a step of {load} ({constants})", *priced]


def _logged(fitting: Sequence[FitOption]) -> list[str]:
    """What vLLM would log of the first that it runs."""
    found = (log_lines(one.fitting, f" of {one.gpu} in {one.quant}") for one in fitting if one.fitting)
    return next(filter(None, found), [])


def _figures(option: FitOption, hidden: Collection[str] = ("GPUs",)) -> list[Figure]:
    """An option with how the model is divided over the GPUs and what renting them would cost; less what is hidden."""
    assert option.fitting is not None
    parallel = option.fitting.deployment.parallel
    kept = [figure for figure in option_figures(option) if figure.label not in hidden]
    division = [
        text("division", parallel.describe(), left=True),
        Figure("devices", parallel.devices),
        Figure("tp", parallel.tp),
        Figure("pp", parallel.pp),
    ]
    seen = [Figure("engine", option.fitting.deployment.engine.name, "engine", left=True)] * ("engine" not in hidden)
    timed = [Figure("tpot_s", option.tpot, None if "TPOT" in hidden else "TPOT", format_time)]
    return [*kept[:1], *division, *seen, *kept[1:], *timed]


def _record(option: FitOption) -> dict[str, Any]:
    if option.fitting is None:
        return {"gpu": option.gpu, "quant": option.quant, "fits": False, "reason": option.reason}
    return record(_figures(option))


def _roomier(option: FitOption) -> str:
    """That stages hold more requests than tensor parallelism."""
    assert option.roomier is not None
    other, held = option.roomier.deployment.parallel, option.roomier.requests
    return (
        f"{option.gpu}, {option.quant}: {other.describe()} holds {held:,} requests, each with a longer time per token "
        f"(--tp {other.tp})"
    )


def _refused(option: FitOption) -> str:
    return f"{option.gpu}, {option.quant}: {option.reason}"
