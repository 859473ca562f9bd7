"""From the replies to a load to its row: tokens, and statistics of its latencies, by the columns of `validate`."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from inferplan.measuring.client import Reply
from inferplan.measuring.planned import PlannedLoad
from inferplan.measuring.server import Server
from inferplan.measuring.session import MeasuredLoad, Session

STATISTICS: dict[str, tuple[float, int]] = {
    "median": (50.0, 1),
    "p90": (90.0, 10),
    "p95": (95.0, 20),
    "p99": (99.0, 100),
}
"""Percentiles, and how many values there must be: of fewer it would be the largest by another name."""
LATENCIES = ("ttft", "tpot", "itl", "e2el")
_TOKEN_PIECES = 1.02
"""Tokens a piece up to which a gap between pieces is one between tokens."""
_SPREAD = 0.02
"""Deviation of the outputs' lengths, as a share, from which the row says that they differ."""


@dataclass(frozen=True, kw_only=True)
class LoadFigures:
    """What a load came to. Latencies: seconds, by name and statistic. isl, osl: mean tokens of a prompt and an output.

    rate: output tokens a second of the whole load. hits: share of prompt tokens found in the server's prefix cache,
    where prompts share text: as it counts, else as they were sent. pieces: tokens a piece of text held. at_once: pieces
    that came together. refused: requests that were turned away at first and sent again. late: seconds by which 99 of
    100 time stamps are at most too late.
    """

    requests: int
    failed: int
    isl: float
    osl: float
    osl_spread: float
    rate: float
    hits: float
    pieces: float
    at_once: float
    refused: int
    late: float
    latencies: Mapping[str, Mapping[str, float]]

    @property
    def varied(self) -> bool:
        """Whether outputs were of several lengths: the server ended them itself."""
        return self.osl_spread > _SPREAD * self.osl


def load_figures(measured: MeasuredLoad) -> LoadFigures | None:
    """The figures of a load; ``None`` where most of its requests failed, or the tokens of none are known."""
    replies = counted_replies(measured)
    if not replies or not measured.usable:
        return None
    outputs = np.array([reply.output for reply in replies], dtype=float)
    prompts = [reply.prompt for reply in replies if reply.prompt is not None]
    pieces = float(np.sum(outputs)) / sum(len(reply.times) for reply in replies)
    at_once = measured.pieces_at_once
    values: dict[str, list[float]] = {
        "ttft": [reply.ttft for reply in replies],
        "tpot": [value for reply in replies if (value := reply.tpot) is not None],
        "itl": [gap for reply in replies for gap in reply.gaps] if pieces * at_once <= _TOKEN_PIECES else [],
        "e2el": [reply.e2el for reply in replies],
    }
    took = max(reply.times[-1] for reply in replies) - min(reply.sent for reply in replies)
    return LoadFigures(
        requests=len(replies),
        failed=len(measured.failed) + len(measured.judged) - len(replies),
        isl=float(np.mean(prompts)),
        osl=float(np.mean(outputs)),
        osl_spread=float(np.std(outputs)),
        rate=float(np.sum(outputs)) / took,
        hits=_hits(measured, replies),
        pieces=pieces,
        at_once=at_once,
        refused=sum(reply.refused > 0 for reply in replies),
        late=float(np.percentile(measured.late, 99)) if measured.late else 0.0,
        latencies={name: _statistics(found) for name, found in values.items()},
    )


def _hits(measured: MeasuredLoad, replies: Sequence[Reply]) -> float:
    """The share of prompt tokens that came from a prefix cache, where prompts were meant to; else 0.

    A server that says it of some replies says nothing of those in which it is none (vLLM, SGLang).
    """
    if not measured.load.repeated:
        return 0.0
    counted = [reply.cached for reply in replies if reply.cached is not None]
    return sum(counted) / sum(reply.prompt or 0 for reply in replies) if counted else measured.load.repeated


def counted_replies(measured: MeasuredLoad) -> list[Reply]:
    """The replies of a load that figures are made of, each with its tokens."""
    return [counted for reply in measured.judged if (counted := _counted(reply, measured.load.output)) is not None]


def _counted(reply: Reply, asked: int) -> Reply | None:
    """A reply whose tokens are known. One that ended at the limit has as many as were asked for."""
    if reply.prompt is None or not (reply.output or reply.finish == "length"):
        return None
    return reply if reply.output else replace(reply, output=asked)


def _statistics(values: Sequence[float]) -> dict[str, float]:
    """Mean and percentiles of what there is enough of."""
    if not values:
        return {}
    found = {"mean": float(np.mean(values))}
    for name, (point, least) in STATISTICS.items():
        if len(values) >= least:
            found[name] = float(np.percentile(values, point))
    return found


def facts_of_server(server: Server | None) -> dict[str, str]:
    """What the server itself says of the deployment, by the columns of `validate`."""
    if server is None:
        return {}
    found = {
        "engine": server.engine,
        "engine_version": server.version if server.engine else "",
        "max_model_len": str(server.context or ""),
        "tp": str(server.tp or ""),
    }
    return {name: value for name, value in found.items() if value}


def row(session: Session, measured: MeasuredLoad, found: LoadFigures, facts: Mapping[str, str]) -> dict[str, str]:
    """A load as a line of the CSV: what was run (``facts``), and what was measured in ms."""
    cells = {
        **facts,
        "isl": f"{found.isl:.6g}",
        "osl": f"{found.osl:.6g}",
        "concurrency": str(measured.load.users or ""),
        "requests": str(found.requests),
        "suspect": "; ".join(measured.suspect),
    }
    for name in LATENCIES:
        for statistic in ("mean", *STATISTICS):
            value = found.latencies[name].get(statistic)
            cells[f"{name}_{statistic}_ms"] = "" if value is None else f"{value * 1e3:.6g}"
    cells["output_tokens_per_s"] = f"{found.rate:.6g}"
    if isinstance(load := measured.load, PlannedLoad) and load.arrivals:
        cells |= {"rate_per_s": f"{load.requests_per_s:.6g}", "duration_s": f"{load.seconds:.6g}"}
    if load.repeated:
        cells["prefix_hit_rate"] = f"{found.hits:.4g}"
    trip = session.round_trip
    cells |= {
        "failed_requests": str(found.failed),
        "network_round_trip_ms": "" if trip is None else f"{trip * 1e3:.4g}",
        "refused_requests": str(found.refused),
        "tokens_per_piece": f"{found.pieces:.4g}",
        "pieces_at_once": f"{found.at_once:.4g}",
        "client_late_ms": f"{found.late * 1e3:.4g}",
    }
    return cells


def figure_rows(session: Session, facts: Mapping[str, str]) -> list[dict[str, str]]:
    """A line for each load that has figures; ``facts`` fill what the server does not say."""
    known = {**facts, **facts_of_server(session.server)}
    pairs = [(measured, load_figures(measured)) for measured in session.loads]
    return [row(session, measured, found, known) for measured, found in pairs if found is not None]


def csv_text(lines: Sequence[Mapping[str, str]]) -> str:
    """The lines as the CSV that `validate` and `anchor fit` read."""
    columns = list(dict.fromkeys(name for line in lines for name in line))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return buffer.getvalue()
