"""DeepSeek-R1 as it is served at scale: the measured rows of the InferenceX campaign (docs/accuracy-scale-out.md).

Nothing is fitted to these rows but four constants of each AMD device, the ``handoff`` of SGLang and how far texts
differ in the drafts that they accept: constants are those on file, flags those that the rows or the campaign's
published run scripts state (``configs/clients.yaml``), acceptance lengths those that were published.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from inferplan.validation.importers import read_file
from inferplan.validation.rows import STATISTICS
from inferplan.validation.run import Pricing, price_rows
from inferplan.validation.score import NAMES, Scored
from tools.accuracy.closed_loop import without_suspects
from tools.accuracy.frontier import frontier_section
from tools.accuracy.power import power_section
from tools.accuracy.scores import HEADS, Line, figures, markdown, pairs_of, score_cells
from tools.fitting.priced import MOST_USERS
from tools.fitting.tails import kept_aside, system_of

_QUEUED = 0.1
"""Share of the median end-to-end time beyond which the first token is mostly a wait: the row is overloaded."""
_BANDS = ((1, 4), (5, 16), (17, 64), (65, 256), (257, 1024), (1025, 1 << 20))
"""Users, by which rows are told apart."""
_WARM = "2026-02"
"""The month from which the client sends requests of warm-up (InferenceX, pull request 480 of 17 January 2026); rows
state their date."""
_HEADLINE = (("tpot", "median"), ("ttft", "median"), ("throughput", "mean"))
_FITTED = ("mi300x", "mi355x")
"""GPUs without tables of kernels: four constants of each are fitted to its fp8-block rows (command ``served``)."""
FORMS: dict[str, Callable[[Scored], bool]] = {
    "aggregated": lambda one: _form(one) == (False, False, False),
    "aggregated, GPUs that nothing is fitted to here": lambda one: (
        _form(one) == (False, False, False) and one.row.cells["gpu"] not in _FITTED
    ),
    "aggregated, attention-DP": lambda one: _form(one) == (False, True, False),
    "aggregated, MTP": lambda one: _form(one) == (False, False, True),
    "aggregated, attention-DP, MTP": lambda one: _form(one) == (False, True, True),
    "disaggregated": lambda one: _form(one) == (True, False, False),
    "disaggregated, attention-DP": lambda one: _form(one) == (True, True, False),
    "disaggregated, MTP": lambda one: _form(one)[::2] == (True, True),
}
"""How DeepSeek-R1 was served; attention-DP of the decodes where prompts are apart."""


def _form(one: Scored) -> tuple[bool, bool, bool]:
    """Whether prompts are apart, attention is data-parallel, and tokens are drafted."""
    run = one.row.run
    assert run is not None
    return run.prefill is not None, run.dp > 1, run.draft is not None


def newest(scored: Sequence[Scored]) -> list[Scored]:
    """The last run of each configuration."""
    return [one for one in scored if one.row.cells.get("newest") == "1"]


def queued(one: Scored) -> bool:
    """Whether most of the time to the first token was a wait: measured, it takes a tenth of the request or more."""
    first, whole = (one.row.measured.at(metric, "median") for metric in ("ttft", "e2el"))
    return first is not None and whole is not None and first > _QUEUED * whole


def _line(name: str, rows: Sequence[Scored], metric: str, statistic: str) -> list[Line]:
    found = figures(pairs_of(rows, metric, statistic))
    return [] if found is None else [[name, *score_cells(found)]]


def _by_form(rows: Sequence[Scored]) -> list[str]:
    """For each form the errors of every figure at every statistic that was measured."""
    parts = []
    for name, holds in FORMS.items():
        members = [one for one in rows if holds(one)]
        calm = [one for one in members if not queued(one)]
        warm = [one for one in members if one.row.cells["date"] >= _WARM]
        lines: list[Line] = []
        for metric in ("tpot", "ttft", "e2el"):
            for statistic in STATISTICS:
                lines += _line(f"{NAMES[metric]} {statistic}", members, metric, statistic)
                if metric == "ttft" and len(calm) < len(members):
                    lines += _line(f"{NAMES[metric]} {statistic}, no overload", calm, metric, statistic)
                if metric == "ttft" and statistic != "median" and len(warm) < len(members):
                    lines += _line(f"{NAMES[metric]} {statistic}, runs since {_WARM}", warm, metric, statistic)
        for metric in ("throughput", "power", "energy"):
            lines += _line(NAMES[metric], members, metric, "mean")
        parts.append(markdown((name, *HEADS), lines))
    return parts


def _percentiles(rows: Sequence[Scored], every: Sequence[Scored]) -> str:
    """Median, 90th and 99th percentile of all runs: of systems that a fit of tails sees, and of those kept aside."""
    aside = kept_aside([one.row for one in every])
    lines: list[Line] = []
    for part, kept in (("fitted to", False), ("kept aside", True)):
        for era, warmed in (("no warm-up", False), ("warmed up", True)):
            members = [
                one
                for one in rows
                if (system_of(one.row) in aside) == kept
                and (one.row.cells["date"] >= _WARM) == warmed
                and one.row.run is not None
                and (one.row.run.concurrency or 0) <= MOST_USERS
            ]
            for metric in ("ttft", "tpot"):
                for statistic in ("median", "p90", "p99"):
                    lines += _line(f"{part}, {era}: {NAMES[metric]} {statistic}", members, metric, statistic)
    return markdown(("systems", *HEADS), lines)


def _grouped(rows: Sequence[Scored], title: str, key: Callable[[Scored], str]) -> str:
    """TPOT, TTFT and throughput of each group of rows in one table."""
    groups: dict[str, list[Scored]] = defaultdict(list)
    for one in rows:
        groups[key(one)].append(one)
    lines: list[Line] = []
    for name, members in sorted(groups.items()):
        cells = []
        for metric, statistic in _HEADLINE:
            found = figures(pairs_of(members, metric, statistic))
            cells += (
                ["-", "-"]
                if found is None
                else [f"{100 * found.mape:.1f} / {100 * found.median:.1f}", f"{100 * found.bias:+.0f}"]
            )
        lines.append([name, str(len(members)), *cells])
    heads = [title, "rows"]
    for metric, _ in _HEADLINE:
        heads += [f"{NAMES[metric]} MAPE / median %", "bias %"]
    return markdown(heads, lines)


def _band(one: Scored) -> str:
    users = one.row.run.concurrency if one.row.run else None
    low, high = next((band for band in _BANDS if band[0] <= (users or 1) <= band[1]), _BANDS[-1])
    return f"{low:5d} to {high} users" if high < 1 << 20 else f"{low:5d} users and more"


def _system(one: Scored) -> str:
    cells = one.row.cells
    fitted = cells["gpu"] in _FITTED and cells["weights"] == "fp8-block" and cells["engine"] == "sglang"
    marked = " (four constants fitted to such rows)" if fitted else ""
    return f"{cells['gpu']}, {cells['framework']}, {cells['weights']}{marked}"


def _worst(rows: Sequence[Scored], count: int = 15) -> str:
    """The rows whose TPOT is furthest off."""
    known = [(abs(error), one) for one in rows if (error := one.error("tpot", "median")) is not None]
    lines: list[Line] = []
    for _, one in sorted(known, key=lambda pair: -pair[0])[:count]:
        run, cells = one.row.run, one.row.cells
        assert run is not None and one.prediction is not None
        what = f"{run.form}, {int(run.prompt)}/{int(run.output)}, {run.concurrency} users"
        values = []
        for metric in ("tpot", "ttft"):
            measured, predicted = one.row.measured.at(metric, "median"), one.prediction.at(metric, "median")
            values += [f"{1e3 * (measured or 0):,.1f}", f"{1e3 * (predicted or 0):,.1f}"]
        lines.append([cells["id"], _system(one), cells["date"], what, *values])
    return markdown(("row", "system", "date", "what", "TPOT ms", "predicted", "TTFT ms", "predicted"), lines)


def scale_out_page(shared: Path, today: str, progress: Callable[[int], None] | None = None) -> tuple[str, list[Scored]]:
    """The page, and the rows behind it."""
    rows = read_file(shared / "measured" / "serving_inferencex.csv", {})[1]
    scored = price_rows(rows, Pricing(), progress)
    clean = without_suspects(scored)
    last = [one for one in newest(clean) if one.prediction is not None]
    refused = Counter(one.refused for one in clean if one.prediction is None)
    prose = (Path(__file__).parent / "scale_out_notes.md").read_text(encoding="utf-8")
    head, causes = prose.split("<!-- figures -->\n")
    answered = sum(one.prediction is not None for one in clean)
    page = [
        head.replace("DATE", today).rstrip() + "\n",
        f"Rows answered: {answered} of {len(clean)} that are not suspect"
        + "".join(f"; {count} refused: {reason}" for reason, count in refused.most_common())
        + f". Newest runs of a configuration: {len(last)}.\n",
        "## By form, newest runs\n",
        *_by_form(last),
        "## By system, newest runs\n",
        _grouped(last, "system", lambda one: f"{_system(one)}: {one.row.run.form if one.row.run else ''}"),
        f"## Percentiles, all runs of up to {MOST_USERS:,} users\n",
        _percentiles([one for one in clean if one.prediction is not None], scored),
        "## By users, newest runs\n",
        _grouped(last, "users", _band),
        "## All runs, earlier releases too\n",
        _grouped([one for one in clean if one.prediction], "form", lambda one: one.row.run.form if one.row.run else ""),
        "## The form that is picked\n",
        frontier_section(last),
        power_section(shared),
        "## The rows that are furthest off\n",
        _worst(last),
        causes.rstrip() + "\n",
    ]
    return "\n".join(page), scored
