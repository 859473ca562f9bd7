"""Replicas that are lost while a cluster runs: what is asked for, and what a run has to say of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import ClassVar, Literal, NamedTuple, get_args

from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.fields import Quantity, Text, Topic, Whole, Words, ask, need

FailureMode = Literal["cut", "drain"]
"""cut: gone at once, what it has begins anew on another. drain: it takes no more requests, finishes those that it has,
and restarts then."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One loss: when, in seconds of the run, and how many replicas of those that take requests, the first of them; or
    all of the first node that has any.
    """

    at: float
    replicas: int = 1
    node: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.at < inf or self.replicas < 1:
            raise UsageError("a failure is at 0 or more seconds, of 1 or more replicas")


@dataclass(frozen=True, kw_only=True)
class Failures:
    """The losses of a run, in order of time. per_node: replicas that stand on one node, in order of their number;
    needed where a node fails. What a lost replica takes to be back is the cold start of the fleet's scaling.
    """

    at: tuple[Failure, ...]
    mode: FailureMode = "cut"
    per_node: int | None = None

    def __post_init__(self) -> None:
        if not self.at or list(self.at) != sorted(self.at, key=lambda failure: failure.at):
            raise UsageError("failures are one or more, in order of time")
        if any(failure.node for failure in self.at) and not (self.per_node or 0) >= 1:
            raise UsageError("a node that fails needs the number of replicas on it", hint="--replicas-per-node 4")


def parse_failure(text: str) -> Failure:
    """``600s``, ``600s:2`` or ``node@600s``. Raises ``UsageError``."""
    node, rest = text.startswith("node@"), text.removeprefix("node@")
    when, colon, count = rest.partition(":")
    if (colon and node) or (colon and not (count.isdecimal() and 1 <= int(count) <= 10_000)):
        raise UsageError(
            f"--fail {text} is not a failure",
            because="it is a time, with a number of replicas behind it or node@ before it",
            hint="--fail 600s, --fail 600s:2, or --fail node@600s",
        )
    at = Quantity("seconds").read("--fail", when)
    return Failure(at=at, replicas=int(count) if colon else 1, node=node)


@dataclass(frozen=True, kw_only=True)
class FailuresAsked:
    """Failures as they are asked for, in any order."""

    topic: ClassVar = Topic("replicas that fail", "none does", "--fail 600s")
    at: tuple[Failure, ...] = field(
        metadata=need(
            "--fail",
            Text(parse_failure),
            "Loss of a replica at a time of the run: 600s; of two: 600s:2; of a node: node@600s. Repeat for more.",
            metavar="WHAT",
            several=True,
        )
    )
    mode: FailureMode = ask(
        "--fail-mode",
        Words(get_args(FailureMode)),
        "cut: its requests start again elsewhere; drain: it finishes its requests, then restarts. [cut]",
        "cut",
    )
    per_node: int | None = ask(
        "--replicas-per-node", Whole(), "Replicas lost with a node. [as many as its GPUs hold]", None
    )

    def on(self, deployment: Deployment) -> Failures:
        """The failures of replicas of a deployment. Raises ``UsageError`` for a size of nodes where none fails."""
        node = any(failure.node for failure in self.at)
        if self.per_node is not None and not node:
            raise UsageError("--replicas-per-node needs a node that fails, and there is none", hint="--fail node@600s")
        per_node = (self.per_node or on_a_node(deployment, "--replicas-per-node 4")) if node else None
        return Failures(at=tuple(sorted(self.at, key=lambda one: one.at)), mode=self.mode, per_node=per_node)


class Outage(NamedTuple):
    """What one failure did. at, back: seconds at which the replicas are lost, and at which all of them take requests
    again. lost: replicas, by their place among the lives of the run. anew: requests that began anew.
    """

    at: float
    back: float
    lost: tuple[int, ...]
    anew: int


def on_a_node(deployment: Deployment, hint: str) -> int:
    """Replicas that a node of the deployment's hardware takes with it. Raises ``UsageError``, with this hint, where
    nobody says how many GPUs it has.
    """
    hardware = deployment.hardware
    if hardware.node is None:
        raise UsageError(
            f"the number of {hardware.name} per node is not known",
            because="sites differ, and its hardware file does not state it",
            hint=hint,
        )
    return replicas_on_a_node(deployment.parallel.ranks, hardware.node)


def replicas_on_a_node(devices: int, node: int) -> int:
    """Replicas of ``devices`` GPUs each that one node of ``node`` GPUs takes with it: as many as it holds whole. One
    that is larger has nodes of its own, and any of them takes it.
    """
    return max(node // devices, 1)
