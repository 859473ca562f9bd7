"""From measured rows of one system to its anchor: what was measured over what is predicted, load by load."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any, NamedTuple

import numpy as np
import yaml

from inferplan.catalog.assemble import anchor_process
from inferplan.devices.anchors import METRICS, Anchor, AnchorLoad, AnchorRow, Metric
from inferplan.errors import UsageError
from inferplan.estimate.anchoring import NEWEST, fingerprint, system_of
from inferplan.validation.deploy import deployment_of
from inferplan.validation.rows import Measured, Row, Run
from inferplan.validation.run import Pricing
from inferplan.validation.score import Scored
from inferplan.work.parallel import Parallelism


class Fitted(NamedTuple):
    """An anchor, and the rows that are not in it, each with the reason."""

    anchor: Anchor
    left_out: list[tuple[str, str]]


def load_of(run: Run, measured: Measured) -> AnchorLoad | None:
    """The load of one replica, mean lengths; an open loop's users by Little's law, ``None`` without both latencies."""
    share = (1 + run.ratio_min) / 2
    prompt, output = max(run.prompt * share, 1.0), max(run.output * share, 1.0)
    parallel = Parallelism(tp=run.tp, ep=run.ep, dp=run.dp, pp=run.pp)
    if run.batch is not None:
        return AnchorLoad(float(run.batch), prompt, output, parallel)
    users = None if run.concurrency is None else float(run.concurrency)
    if users is None and run.rate is not None and measured.ttft is not None and measured.tpot is not None:
        users = run.rate * (measured.ttft + (output - 1.0) * measured.tpot)
    return None if users is None else AnchorLoad(max(users / run.workers, 1.0), prompt, output, parallel)


def anchor_of(scored: Sequence[Scored], pricing: Pricing, source: str) -> Fitted:
    """The anchor of rows of one system, predicted under ``pricing``; ``source`` says where they are from.

    Rows without a prediction, suspect and impossible ones, runs of pools or drafts, and a run that is there already
    (its file given twice says nothing new) are left out. Raises
    ``UsageError`` when no row is left, or rows of more than one system.
    """
    rows: dict[tuple[Any, ...], list[AnchorRow]] = {}
    known: dict[tuple[Run, frozenset[Any]], str] = {}
    kernels: dict[str, str] = {}
    left_out: list[tuple[str, str]] = []
    for one in scored:
        reason, row = refusal(one), None if one.row.run is None else _row(one, one.row.run)
        if reason or row is None or one.row.run is None:
            left_out.append((one.row.where, reason or "its users are not known: a rate without TTFT and TPOT"))
            continue
        facts = one.row.run, frozenset(one.row.measured.figures.items())
        if facts in known:
            left_out.append((one.row.where, f"the same run as {known[facts]}, to the last digit"))
            continue
        known[facts] = one.row.where
        deployment = deployment_of(one.row.run, pricing.calibration, pricing.ideal)[0]
        static = one.row.run.batch is not None
        digest = fingerprint(deployment)
        kernels[digest] = deployment.calibration.note or NEWEST
        system = system_of(deployment)
        alike = next((one for one in rows if one[1:] == (digest, static) and one[0].same(system)), None)
        members = [] if alike is None else rows.pop(alike)
        if alike is not None and len(alike[0].release or "") > len(system.release or ""):
            system = alike[0]  # of two names of one release the one that says more
        rows[system, digest, static] = [*members, row]
    if not rows:
        reasons = "; ".join(dict.fromkeys(reason for _, reason in left_out))
        hint = "--model, --gpu, --engine, --quant and --tp state what a file does not" if "empty" in reasons else ""
        raise UsageError("no run to anchor to", because=reasons or "the files hold no rows", hint=hint)
    if len(rows) > 1:
        named = [
            f"{system.describe()}{', static batches' if static else ''}, kernels {kernels[digest]}"
            for system, digest, static in rows
        ]
        raise UsageError(
            f"an anchor describes one system, not {len(rows)}",
            because="; ".join(named[:4]),
            hint="only the results of one of them",
        )
    (system, digest, _), members = next(iter(rows.items()))
    return Fitted(
        Anchor(
            system=system,
            priced_with=digest,
            provenance={"runs": source, "kernels": kernels[digest]},
            process=anchor_process(),
            rows=tuple(members),
        ),
        left_out,
    )


def require_unopposed(rows: Sequence[Row]) -> None:
    """Raise ``UsageError`` where a file states otherwise than the command line: an anchor is of what ran."""
    for row in rows:
        if row.opposed:
            raise UsageError(
                f"{row.where} says {row.opposed[0]}",
                because="options fill in facts that a file lacks; this file states them",
                hint="leave the option out, or mend the file",
            )


def refusal(one: Scored) -> str:
    """Why a row says nothing of how its system is predicted; empty where it does."""
    run = one.row.run
    if run is None or one.prediction is None:
        return one.refused or one.row.refused or "no prediction"
    if one.suspect:
        return f"suspect: {run.suspect}"
    if one.impossible:
        return f"impossible: {', '.join(one.impossible)}"
    if run.prefill is not None or run.draft is not None:
        return "separate pools, or drafts: another system"
    return "" if any(one.error(metric) is not None for metric in METRICS) else "neither TTFT nor TPOT"


def _row(one: Scored, run: Run) -> AnchorRow | None:
    load = load_of(run, one.row.measured)
    if load is None:
        return None
    ratios: dict[str, float] = {}
    told = []
    for metric in METRICS:
        error, measured = one.error(metric), one.row.measured.at(metric)
        if error is None or measured is None:
            continue
        ratios[f"{metric}_ln_ratio"] = _digits(-log(1.0 + error))
        told.append(f"{metric.upper()} {measured * 1e3:.4g} ms, predicted {measured * (1 + error) * 1e3:.4g}")
    return AnchorRow(
        users=_digits(load.users),
        prompt=_digits(load.prompt),
        output=_digits(load.output),
        **{degree: getattr(run, degree) for degree in ("tp", "ep", "dp", "pp")},
        ttft_ln_ratio=ratios.get("ttft_ln_ratio"),
        tpot_ln_ratio=ratios.get("tpot_ln_ratio"),
        source=f"{one.row.where}: {'; '.join(told)}",
    )


def _digits(value: Any) -> float:
    return float(f"{float(value):.6g}")


def anchor_yaml(anchor: Anchor) -> str:
    """The file for ``--anchor``."""
    head = "# Written by inferplan for --anchor: measured runs of one system (docs/anchors.md).\n"
    record = anchor.model_dump(mode="json", exclude_none=True)
    return head + yaml.safe_dump(record, sort_keys=False, allow_unicode=True, width=120)


def left_over(anchor: Anchor, metric: Metric) -> tuple[float, float] | None:
    """Mean absolute error of the rows' latency: as predicted, and each corrected by the others.

    ``None`` for fewer than two rows.
    """
    points, errors = anchor.measured(metric)
    if len(errors) < 2:
        return None
    kernel, left = anchor.process.kernel(metric), np.empty(len(errors))
    known = np.clip(errors, -anchor.process.clip, anchor.process.clip)
    for index in range(len(errors)):
        others = np.arange(len(errors)) != index
        left[index] = errors[index] - kernel.posterior(points[others], known[others], points[~others])[0][0]
    before, after = (float(np.mean(np.abs(np.expm1(-values)))) for values in (errors, left))
    return before, after
