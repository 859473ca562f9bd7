"""Which models run on GPUs that somebody has, as a table and JSON."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inferplan.answers.fit_models import ModelFit, ModelsThatFit
from inferplan.catalog.quality import cache_line
from inferplan.catalog.years import year_of
from inferplan.figures import Figure, record, side_by_side, text
from inferplan.reports.fit import (
    QUALITY_NOTE,
    device_lines,
    engines_of,
    load_record,
    load_tables,
    of_people,
    option_figures,
)
from inferplan.table import Report
from inferplan.units import format_bytes, format_parameters

_MOST = 40
"""Models in the table."""
_SPARE = ("weights", "active", "longest context")
_SEEN = frozenset({"GPU", "format", "quality kept", "requests", "longest context"})
"""Of the figures of an option those that stand in the table."""


def models_report(found: ModelsThatFit) -> Report:
    """A line for each model that fits, the largest for its year first; JSON has the others too, and why they do not."""
    fitting, several = found.fitting, len(found.meant) > 1
    records, shown = [_record(one) for one in found.models], fitting[:_MOST]
    rows = [_figures(one, several) for one in shown]
    tokens, held = found.asked.context or 8192, found.asked.held
    context, load = f"{tokens:,}", f"{held:,} request{'s' if held > 1 else ''}"
    title = f"{len(fitting)} of {len(found.models)} models on file fit {found.have}, the largest for their year first"
    notes = [
        f"requests: how many fit at once, each of {context} tokens or the model's limit",
        "order: by parameters, which count half for every 16 months of a model's age (arXiv 2403.05812); not a ranking "
        "of quality. Year: of the architecture in transformers, or of the model (configs/years.yaml)",
        f"overheads: what {engines_of([one.option for one in fitting])} sets aside by default; for another: --engine",
        f"format: the widest that holds {load} at once, narrower ones hold more requests (--quant w4a16)",
        QUALITY_NOTE,
        *filter(None, [cache_line(found.asked.kv, found.asked.quality)]),
        f"a model in all its formats: inferplan fit {shown[0].model.name} --have {_typed(found)}",
        *device_lines(one.option for one in fitting),
    ]
    if several:
        kinds = ", ".join(one.gpu for one in found.meant)
        notes.insert(0, f"each model is shown on the GPU that suits it best among those sold with that memory: {kinds}")
    if len(fitting) > len(shown):
        notes.insert(0, f"{len(fitting) - len(shown)} other models fit too: --format csv lists all")
    report = Report(
        record={
            "have": found.have,
            "gpus": [one.gpu for one in found.meant],
            "load": load_record(found.asked),
            "models": records,
        },
        tables=[
            *load_tables(found.asked, tokens),
            side_by_side(title, rows, _SPARE),
        ],
        notes=notes,
        rows=records,
        of=found,
    )
    return of_people(report, found.asked)


def _typed(found: ModelsThatFit) -> str:
    """The GPUs as a shell takes them."""
    return f"'{found.have}'" if " " in found.have else found.have


def _figures(one: ModelFit, several: bool) -> list[Figure]:
    """A model that fits. several: the GPUs are of several kinds."""
    option, counts = one.option, one.model.parameters
    assert option.fitting is not None
    parallel, footprint = option.fitting.deployment.parallel, option.fitting.footprint
    seen = _SEEN if several else _SEEN - {"GPU"}
    return [
        Figure("model", one.model.name, "model", left=True),
        Figure("year", year_of(one.model), "year"),
        Figure("parameters", counts["total"], "parameters", format_parameters),
        Figure("active_parameters", counts["active"], "active", format_parameters),
        text("weights", format_bytes(footprint.weights * parallel.devices)),
        Figure("division", parallel.describe()),
        *(replace(figure, seen=figure.label in seen) for figure in option_figures(option)),
    ]


def _record(one: ModelFit) -> dict[str, Any]:
    option, total = one.option, one.model.parameters["total"]
    if option.fitting is None:
        return {"model": one.model.name, "parameters": total, "fits": False, "reason": option.reason}
    return record(_figures(one, True))
