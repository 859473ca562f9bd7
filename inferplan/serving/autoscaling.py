"""Who has replicas come and go: a schedule that is known ahead, or the rule of Kubernetes' horizontal pod autoscaler.

A :class:`Scaling` is a value; what it remembers during a run is in the :class:`Scaler` that it makes for it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import ceil, inf
from typing import NamedTuple, Protocol

from inferplan.errors import UsageError

_ROUNDING = 1e-9
"""Below this, a number of replicas is a whole one that was rounded."""
_MOST_UP, _PERIOD = (2, 4), 15.0
"""In a period of so many seconds the autoscaler at most doubles the replicas or adds four, whichever is more: the
default ``scaleUp`` policies of the HorizontalPodAutoscaler, 100 percent and 4 pods with ``periodSeconds: 15``
(kubernetes.io, Horizontal Pod Autoscaling, "Default Behavior"). Its ``scaleDown`` policy, 100 percent, bounds nothing.
"""


class Life(NamedTuple):
    """One replica, in seconds of the run: when it was ordered, from when it takes requests, from when it takes no more,
    and when the last of them is done, or it is taken away. Infinity: not in this run. taken: somebody else needs it.
    resent: requests that it had when it was taken away, which begin anew elsewhere.
    """

    ordered: float
    ready: float
    left: float = inf
    gone: float = inf
    taken: bool = False
    resent: int = 0


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Replicas that are taken away, as those of spot instances: each at ``rate`` a second from its order on, whatever
    it does (an exponential life); it is told ``notice`` seconds before.
    """

    rate: float
    notice: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.rate < inf or not 0 <= self.notice < inf:
            raise UsageError("replicas are taken away at a rate above 0, with a notice of 0 or more seconds")


class Scaler(Protocol):
    """What decides, during one run."""

    def next_look(self, time: float) -> float:
        """When it looks next, after ``time``; infinity for never."""

    def wanted(self, time: float, replicas: int, requests: int) -> int:
        """Replicas that there should be, of ``replicas`` that are there or on their way, with so many requests."""


class Scaling(Protocol):
    """How replicas come and go. first: those that are ready when the run begins. cold_start: seconds from the order of
    a replica until it takes requests.
    """

    @property
    def first(self) -> int: ...

    @property
    def cold_start(self) -> float: ...

    @property
    def looks(self) -> bool:
        """Whether anything ever changes."""

    @property
    def until(self) -> float:
        """It looks until then, in seconds, and for as long as requests come, or wait for a replica."""

    def scaler(self) -> Scaler: ...


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Replicas by a timetable. changes: (seconds, replicas from then on that are there or on their way), in order; the
    first is at 0.
    """

    changes: tuple[tuple[float, int], ...]
    cold_start: float = 0.0

    @property
    def first(self) -> int:
        return self.changes[0][1]

    @property
    def looks(self) -> bool:
        return len(self.changes) > 1

    @property
    def until(self) -> float:
        return self.changes[-1][0]

    def scaler(self) -> Scaler:
        return _Timetable(self.changes)


class _Timetable:
    def __init__(self, changes: tuple[tuple[float, int], ...]) -> None:
        self.changes = changes

    def next_look(self, time: float) -> float:
        return next((at for at, _ in self.changes if at > time), inf)

    def wanted(self, time: float, replicas: int, requests: int) -> int:
        return [count for at, count in self.changes if at <= time][-1]


def require_some(least: int, most: int) -> None:
    """Raise ``UsageError`` for bounds between which there is no number of replicas."""
    if not 0 <= least <= most or most < 1:
        raise UsageError(f"between {least} and {most} replicas there is no number of them")


@dataclass(frozen=True, kw_only=True)
class Reactive:
    """The rule of Kubernetes' HorizontalPodAutoscaler on the requests in a replica, waiting and running.

    ``desired = ceil(current*metric/target)`` every ``interval`` seconds, with ``metric`` the mean over the ``current``
    replicas, those on their way counted as empty; nothing changes while ``metric/target`` is within ``tolerance`` of 1;
    fewer are only wanted when that was so in all of the last ``stabilisation`` seconds (kubernetes.io, Horizontal Pod
    Autoscaling, "Algorithm details", "Stabilization window"; defaults as there). ``least`` may be 0, as KEDA has it:
    who finds no replica then orders one, and more the look after (keda.sh, "Scaling Deployments": from 0 to 1 is
    KEDA's, the rest is the autoscaler's).
    """

    target: float
    first: int
    cold_start: float
    least: int = 1
    most: int = 1000
    interval: float = 15.0
    tolerance: float = 0.1
    stabilisation: float = 300.0
    until: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.target < inf or not 0 < self.interval < inf:
            raise UsageError("a target of requests in a replica, and the time between looks, must be more than 0")
        require_some(self.least, self.most)
        if self.tolerance < 0 or self.stabilisation < 0 or self.cold_start < 0:
            raise UsageError("a tolerance, a stabilisation window and a cold start are 0 or more")

    @property
    def looks(self) -> bool:
        return self.least < self.most or self.first != self.least

    def scaler(self) -> Scaler:
        return _Autoscaler(self)


class _Autoscaler:
    def __init__(self, rule: Reactive) -> None:
        self.rule = rule
        self.asked = deque([(0.0, rule.first)])
        """(time, replicas) of past looks, falling: the first is the most of the stabilisation window. Those that are
        there at the beginning are the first wish (``recordInitialRecommendation``, podautoscaler/horizontal.go)."""
        self.changes: deque[tuple[float, int]] = deque()
        """(time, replicas more, or fewer) of what it changed in the last period."""

    def next_look(self, time: float) -> float:
        return time + self.rule.interval

    def wanted(self, time: float, replicas: int, requests: int) -> int:
        rule, asked = self.rule, self.asked
        desired = ceil(requests / rule.target - _ROUNDING)
        if replicas and abs(requests / (replicas * rule.target) - 1.0) <= rule.tolerance + _ROUNDING:
            desired = replicas
        while asked and asked[-1][1] <= desired:
            asked.pop()
        asked.append((time, desired))
        while asked[0][0] < time - rule.stabilisation:
            asked.popleft()
        if desired < replicas:
            desired = min(asked[0][1], replicas)
        if desired > replicas:
            desired = max(min(desired, self._most(time, replicas)), replicas)
        desired = min(max(desired, rule.least), rule.most)
        if replicas and desired != replicas:
            self.changes.append((time, desired - replicas))
        return desired

    def _most(self, time: float, replicas: int) -> int:
        """The most replicas at a look, from those at the beginning of the period that it ends (``horizontal.go``,
        ``calculateScaleUpLimitWithScalingRules``); one where there are none: that step is KEDA's.
        """
        if not replicas:
            return 1
        while self.changes and self.changes[0][0] <= time - _PERIOD + _ROUNDING:
            self.changes.popleft()
        before = replicas - sum(change for _, change in self.changes)
        times, more = _MOST_UP
        return max(times * before, before + more)
