"""What a service should do under the load that it has: the plan's deployment, simulated under what is seen."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from math import ceil, exp, inf, log
from typing import Literal, NamedTuple, TypeVar, get_args

from inferplan.errors import InferplanError
from inferplan.estimate.deployment import Deployment
from inferplan.planning.demand import Demand
from inferplan.serving.batch_means import RunPrecision
from inferplan.serving.flags import Flags
from inferplan.serving.options import Options
from inferplan.serving.result import SimulationResult
from inferplan.serving.run_length import simulate_steady
from inferplan.serving.techniques.speculation import PLAIN, Speculation
from inferplan.traffic.requests import Lengths, SharedPrefix, Slo

Latency = Literal["ttft", "tpot", "e2el"]
LATENCIES: tuple[Latency, ...] = get_args(Latency)
_GRID, _HITS = log(1.06), 0.04
"""Loads are told apart by so much: rates and lengths by 6 %, hits by four points. None is simulated twice."""
_KEPT = 2048
"""Simulated loads that are kept."""
_PRECISION = RunPrecision(tolerance=0.05, fewest=2_000, most=2_000)
_NEAR, _MOST = 1.06, 64.0
"""How near the load that breaks a limit is found, and the most times the present one that is tried."""
_Known = TypeVar("_Known")


class Pace(NamedTuple):
    """How a service differs from its model. step: times as long as the model has them that steps take. first: times as
    late that first tokens come, by servers of that pace."""

    step: float = 1.0
    first: float = 1.0

    @property
    def on_grid(self) -> Pace:
        """The pace on the grid on which loads are told apart."""
        return Pace(_on_grid(self.step), _on_grid(self.first))


AS_MODELLED = Pace()


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a service has to do. rate: requests a second of all servers. prompt, output: mean tokens. hits: share of the
    prompts' tokens in the prefix cache. servers: replicas that share it."""

    rate: float
    prompt: float
    output: float
    hits: float = 0.0
    servers: int = 1

    @property
    def each(self) -> Load:
        """The load of one of the servers, on the grid on which loads are told apart."""
        return Load(
            rate=_on_grid(self.rate / self.servers),
            prompt=max(_on_grid(self.prompt), 1.0),
            output=max(_on_grid(self.output), 1.0),
            hits=min(round(self.hits / _HITS) * _HITS, 0.96),
            servers=self.servers,
        )


def _on_grid(value: float) -> float:
    return exp(round(log(value) / _GRID) * _GRID)


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What a load should bring. latencies: seconds at the limits' percentile; ttft, gap: mean seconds until a first
    token and between tokens; running: requests of a server; cache: share of its KV cache in use. refused: why it cannot
    be run at all; ``verdict`` is then empty."""

    verdict: str
    latencies: dict[str, float] = field(default_factory=dict)
    ttft: float | None = None
    gap: float | None = None
    running: float | None = None
    cache: float | None = None
    refused: str = ""

    def late(self, times: float) -> Predicted:
        """The same where first tokens come so many times as late."""
        if times == 1.0 or self.ttft is None:
            return self
        more = (times - 1.0) * self.ttft
        latencies = {**self.latencies, "ttft": self.latencies["ttft"] * times}
        if "e2el" in latencies:
            latencies["e2el"] += more
        return replace(self, latencies=latencies, ttft=self.ttft + more)

    @property
    def overloaded(self) -> bool:
        """Whether the queue grows without end."""
        return not self.latencies

    def broken(self, slo: Slo) -> dict[str, float]:
        """Latencies over their limit, as multiples of it; every one, without bound, where it is overloaded."""
        if self.overloaded:
            return dict.fromkeys(slo.limits, inf)
        shares = {name: self.latencies[name] / limit for name, limit in slo.limits.items()}
        return {name: share for name, share in shares.items() if share > 1.0}


@dataclass(frozen=True, kw_only=True)
class Room:
    """How much load is left. rate: requests a second of all servers under which every limit is kept; times: over the
    present one; first: the latency that breaks its limit first beyond it, ``load`` where the queue grows before any
    does. more: even the most load that is tried is kept."""

    rate: float
    times: float
    first: str
    more: bool = False


@dataclass(kw_only=True, eq=False)
class Twin:
    """A service as it was planned. demand: its lengths, whose form stays while their means move. flags: of a server.

    Every prediction is for servers of a pace, which they were seen to have.
    """

    deployment: Deployment
    demand: Demand
    flags: Flags
    slo: Slo
    speculation: Speculation = PLAIN
    _predicted: dict[Hashable, Predicted] = field(default_factory=dict)
    _rooms: dict[Hashable, tuple[float, str, bool]] = field(default_factory=dict)

    def predict(self, load: Load, pace: Pace = AS_MODELLED) -> Predicted:
        """What a load should bring."""
        return self._predict(load.each, pace.on_grid)

    def _predict(self, each: Load, pace: Pace) -> Predicted:
        found = _kept(self._predicted, (each, pace.step), lambda: self._simulated(each, pace.step))
        return found.late(pace.first)

    def _simulated(self, each: Load, slow: float) -> Predicted:
        """One server under its share. It runs in its own time, in which ``slow`` seconds are one."""
        options = Options(slo=self.slo, hit_rate=each.hits, speculation=self.speculation)
        try:
            demand = replace(
                self.demand,
                prompt=_scaled(self.demand.prompt, each.prompt),
                output=_scaled(self.demand.output, each.output),
                rate=each.rate * each.servers,
                users=None,
                people=None,
                own=None,
                prefix=SharedPrefix(),
            )
            traffic = demand.one_of(each.servers).traffic(each.rate * slow, _PRECISION.fewest)
            result = simulate_steady(self.deployment, traffic, self.flags, options, _PRECISION)
        except InferplanError as error:
            return Predicted(verdict="", refused=f"{error.what}: {error.because}" if error.because else error.what)
        return _read(result, slow, self.slo)

    def room(self, load: Load, pace: Pace = AS_MODELLED) -> Room | None:
        """The load that breaks a limit first, by bisection over the rate; ``None`` without limits, or for a load of
        which no rate is kept.
        """
        if not self.slo.limits:
            return None
        each, pace = load.each, pace.on_grid
        shape = replace(each, rate=1.0)
        most, first, more = _kept(self._rooms, (shape, pace), lambda: self._breaking(each, pace))
        if not most:
            return None
        return Room(rate=most * load.servers, times=most * load.servers / load.rate, first=first, more=more)

    def _breaking(self, each: Load, pace: Pace) -> tuple[float, str, bool]:
        """The largest rate of a server that keeps the limits, what breaks first beyond it, and whether even the most
        that is tried is kept; a rate of 0 where none is kept.
        """

        def broken(rate: float) -> dict[str, float]:
            return self._predict(replace(each, rate=rate), pace).broken(self.slo)

        low, high, over, rate = 0.0, inf, dict[str, float](), each.rate
        while each.rate / _MOST <= rate <= each.rate * _MOST:
            found = broken(rate)
            if found:
                high, over = rate, found
            else:
                low = rate
            if low and high / low <= _NEAR:
                break
            rate = rate * 2.0 if high == inf else (low * high) ** 0.5 if low else rate / 2.0
        return low, _worst(over) if over else "", high == inf


def _worst(over: dict[str, float]) -> str:
    """The latency that is furthest over its limit."""
    return "load" if all(share == inf for share in over.values()) else max(over, key=lambda name: over[name])


def _kept(known: dict[Hashable, _Known], key: Hashable, make: Callable[[], _Known]) -> _Known:
    """What is known of a key, made where it is not; the oldest of too many is forgotten."""
    if key not in known:
        if len(known) >= _KEPT:
            del known[next(iter(known))]
        known[key] = make()
    return known[key]


def _scaled(lengths: Lengths, mean: float) -> Lengths:
    """Lengths of the same form with another mean."""
    times = mean / lengths.average
    most = None if lengths.most is None else ceil(lengths.most * times)
    return replace(lengths, mean=max(lengths.mean * times, 1.0), most=most)


def _read(result: SimulationResult, slow: float, slo: Slo) -> Predicted:
    """The figures of a run, in the seconds of a server that is ``slow`` times as slow."""
    import numpy as np

    if not result.steady or not len(result.ttft):
        return Predicted(verdict=result.verdict)
    gaps = result.percentiles("itl_s")["mean"]
    return Predicted(
        verdict=result.verdict,
        latencies={
            name: float(np.percentile(values, slo.percentile)) * slow
            for name in LATENCIES
            if len(values := getattr(result, name))
        },
        ttft=float(np.mean(result.ttft)) * slow,
        gap=None if gaps is None else gaps * slow,
        running=result.mean_batch,
        cache=result.kv_use["mean"],
    )
