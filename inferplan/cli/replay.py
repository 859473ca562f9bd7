"""A log that ``inferplan day`` replays, in the place of a profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from inferplan.errors import UsageError
from inferplan.features import require_together
from inferplan.traffic.profile import Profile, profile_of
from inferplan.traffic.request_log import Log, fold_days, read_replicas, way_of
from inferplan.traffic.requests import Requests
from inferplan.traffic.traces import Recorded, read_recorded

_STATED = (
    *("profile", "profile_from", "peak", "people", "sessions_a_day", "answer_time", "think_time", "workload"),
    *("prompt", "output", "classes", "queue", "shared_prefix", "distinct_prefixes", "turns", "samples", "sessions"),
)
"""Options of a load that a log states itself."""

replay_options = (
    click.option(
        "--replay",
        metavar="FILE",
        help="A log of hours to weeks, replayed as it came: a file of Azure or Mooncake, or a CSV with timestamp "
        "(2026-03-02T08:00:00, or seconds; or arrival_s), prompt and output (or prompt_tokens, completion_tokens).",
    ),
    click.option(
        "--replay-replicas",
        metavar="FILE",
        help="Replicas that took requests then, from a CSV (timestamp,replicas): a policy, recorded, and what it cost.",
    ),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Replayed:
    """A log as a day takes it. profile: its rates. ran: the replicas that took requests. timetable: what a schedule
    goes by, where that is one day made of many."""

    log: Recorded
    profile: Profile
    ran: tuple[tuple[float, int], ...] = ()
    timetable: Profile | None = None

    @property
    def asked(self) -> dict[str, Any]:
        """The fields of the question."""
        return {"replay": self.log, "ran": self.ran, "timetable": self.timetable}


def replay_of(values: Mapping[str, Any]) -> Replayed | None:
    """The log that is asked for; ``None`` without one. Raises ``UsageError`` for options of another load beside it."""
    path, replicas = values["replay"], values["replay_replicas"]
    if path is None:
        if replicas is not None:
            raise UsageError("--replay-replicas says what ran under a log", hint="--replay FILE, or leave it out")
        return None
    source = click.get_current_context().get_parameter_source
    given = [name for name in _STATED if source(name) is click.core.ParameterSource.COMMANDLINE]
    if given:
        raise UsageError(
            f"--replay and --{given[0].replace('_', '-')} exclude each other",
            because="the requests of a log come as they came",
            hint=f"--slo {values['workload']} for its limits alone" if "workload" in given else "one of them",
        )
    if source("seed") is click.core.ParameterSource.COMMANDLINE and values["preemptions"] is None:
        raise UsageError("--seed changes nothing of a log that is replayed", hint="leave it out")
    log = read_recorded(Path(path))
    require_times(log.requests)
    require_together("day", log.requests.features | {"elastic"})
    if log.requests.arrival is None or np.any(np.isnan(log.requests.arrival)):
        raise UsageError("a log that is replayed has arrival times", hint="a column arrival_s or timestamp")
    return Replayed(
        log=log,
        profile=profile_of(log.requests, Path(path).stem),
        ran=() if replicas is None else read_replicas(Path(replicas), log.began, log.dated),
        timetable=_timetable(values["fold"], log, path),
    )


def require_times(trace: Requests) -> None:
    """Raise ``UsageError`` for sessions of a trace, whose calls have no times."""
    if trace.sessions is not None:
        raise UsageError(
            "a day needs the times of requests, and a trace of agents has those of its sessions",
            because="their calls follow answers",
            hint="--profile 00:00=2,08:00=9 with --sessions FILE for such sessions",
        )


def _timetable(way: str | None, log: Recorded, path: str) -> Profile | None:
    """One day made of those of the log, which begin with its first request; ``None`` where nobody asks for it."""
    if way is None:
        return None
    arrival = log.requests.arrival
    assert arrival is not None
    return fold_days(
        Log(arrival, np.zeros(len(arrival), dtype=np.int64)), Path(path).name, way_of(way), f"--fold {way}"
    )
