"""The loops of plain replicas and pipelines in C against those in Python: the same figures to the last bit, whatever
the load."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferplan.estimate.deployment import Deployment
from inferplan.mapped import Spool
from inferplan.serving import plain_pipeline, plain_replica
from inferplan.serving.autoscaling import Reactive, Scaling, Schedule
from inferplan.serving.cluster_run import ClusterRun
from inferplan.serving.flags import Flags
from inferplan.serving.fleet import Fleet
from inferplan.serving.options import Options
from inferplan.serving.routing import Routing
from inferplan.serving.simulator import prepare, simulate
from inferplan.traffic.requests import ClosedLoop, Requests, Traffic, parse_lengths
from inferplan.work.parallel import Parallelism
from tests.cases import for_each
from tests.serving.conftest import deployment
from tests.serving.native_build import native_module, runs_in
from tests.serving.test_plain_replica import CASES, figures_of, open_loop

MODELS = ("llama-3.1-8b", "gpt-oss-20b", "granite-4.0-h-small")
"""A cache that grows with every token, one with windows, one with constant state."""
FLAGS = (
    Flags(),
    Flags(max_num_seqs=4),
    Flags(max_num_batched_tokens=128),
    Flags(gpu_memory_utilization=0.3),
    Flags(gpu_memory_utilization=0.3, prefix_caching=False, max_num_seqs=200),
    Flags(max_model_len=900),
)
ENGINES = [(model, flags) for model in MODELS[:2] for flags in FLAGS] + [(MODELS[2], flags) for flags in FLAGS[:3]]
FLEETS = (
    (1, Fleet()),
    (3, Fleet()),
    (2, Fleet(routing="least-loaded")),
    (5, Fleet(routing="least-loaded")),
    (1, Fleet(prefill=2, decode=2)),
    (1, Fleet(prefill=1, decode=3, routing="least-loaded")),
)


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return native_module(tmp_path_factory.mktemp("native"))


def _served(model: str, ideal: bool, late: bool, replicas: int = 1, stages: int = 1) -> Deployment:
    served = deployment(model, "h200-sxm", ideal, parallel=Parallelism(pp=stages, replicas=replicas))
    serving = served.engine.serving.model_copy(update={"seen_late": late})
    return replace(served, engine=served.engine.model_copy(update={"serving": serving}))


def _hold_alike(
    native: ModuleType, served: Deployment, sent: Traffic | Requests, flags: Flags, options: Options
) -> None:
    with runs_in(None):
        python = simulate(served, sent, flags, options)
    with runs_in(native):
        found = simulate(served, sent, flags, options)
    assert figures_of(found) == figures_of(python)
    assert found.lives == python.lives


class _Load(NamedTuple):
    """A load that was drawn: requests with times, some at the same moment."""

    gaps: list[float]
    prompts: list[int]
    outputs: list[int]

    @property
    def requests(self) -> Requests:
        count = len(self.gaps)
        prompt, output = np.resize(self.prompts, count), np.resize(self.outputs, count)
        return Requests(prompt=prompt, output=output, arrival=np.cumsum(self.gaps))


_GAPS = st.one_of(st.just(0.0), st.just(0.5), st.floats(0.0, 0.01), st.floats(0.0, 2.0))
_LOADS = st.builds(
    _Load,
    st.lists(_GAPS, min_size=2, max_size=120),
    st.lists(st.one_of(st.integers(1, 300), st.integers(1, 12_000)), min_size=1, max_size=17),
    st.lists(st.one_of(st.integers(1, 3), st.integers(1, 900)), min_size=1, max_size=13),
)


@settings(deadline=None, max_examples=160)
@given(
    load=_LOADS,
    engine=st.sampled_from(ENGINES),
    effects=st.tuples(st.booleans(), st.booleans()),
    replicas=st.sampled_from(FLEETS),
    trim=st.booleans(),
    stages=st.sampled_from((1, 1, 2, 3)),
)
def test_random_loads(
    native: ModuleType,
    load: _Load,
    engine: tuple[str, Flags],
    effects: tuple[bool, bool],
    replicas: tuple[int, Fleet],
    trim: bool,
    stages: int,
) -> None:
    served = _served(engine[0], *effects, replicas[0], stages)
    _hold_alike(native, served, load.requests, engine[1], Options(fleet=replicas[1], trim=trim))


_HALVES = st.integers(1, 50).map(lambda halves: halves / 2)
"""Seconds at which requests come too: events of the same moment have an order."""
_SCHEDULES = st.builds(
    lambda first, changes, cold: Schedule(changes=((0.0, first), *sorted(changes.items())), cold_start=cold),
    st.integers(1, 5),
    st.dictionaries(st.one_of(_HALVES, st.floats(0.01, 40.0)), st.integers(0, 6), min_size=2, max_size=9),
    st.one_of(st.just(0.0), _HALVES, st.floats(0.0, 8.0)),
)
_AUTOSCALERS = st.builds(
    lambda target, first, least, cold, interval, window: Reactive(
        target=target, first=first, least=least, most=7, cold_start=cold, interval=interval, stabilisation=window
    ),
    st.floats(0.5, 20.0),
    st.integers(1, 4),
    st.integers(0, 2),
    st.one_of(_HALVES, st.floats(0.0, 8.0)),
    st.one_of(st.just(0.5), st.floats(0.2, 5.0)),
    st.floats(0.0, 8.0),
)


@pytest.mark.filterwarnings("ignore:All-NaN axis")  # where nothing is ever served
@settings(deadline=None, max_examples=120)
@given(
    load=_LOADS,
    engine=st.sampled_from(ENGINES),
    effects=st.tuples(st.booleans(), st.booleans()),
    scaling=st.one_of(_SCHEDULES, _AUTOSCALERS),
    routing=st.sampled_from(["least-loaded", "round-robin"]),
    trim=st.booleans(),
)
def test_random_replicas_that_come_and_go(
    native: ModuleType,
    load: _Load,
    engine: tuple[str, Flags],
    effects: tuple[bool, bool],
    scaling: Scaling,
    routing: Routing,
    trim: bool,
) -> None:
    """Also none at all for a while, when requests wait at the router."""
    options = Options(fleet=Fleet(routing=routing, scaling=scaling), trim=trim)
    _hold_alike(native, _served(engine[0], *effects), load.requests, engine[1], options)


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.tuples(st.integers(2, 3000), st.integers(1, 500)),
    users=st.integers(1, 60),
    flags=st.sampled_from(FLAGS[:5]),
    ideal=st.booleans(),
    late=st.booleans(),
    seed=st.integers(0, 99),
)
def test_random_users(
    native: ModuleType, lengths: tuple[int, int], users: int, flags: Flags, ideal: bool, late: bool, seed: int
) -> None:
    arrivals = ClosedLoop(concurrency=users)
    prompt, output = (parse_lengths(f"lognormal:{tokens}:0.8") for tokens in lengths)
    sent = Traffic(arrivals=arrivals, requests_count=3 * users, prompt=prompt, output=output, seed=seed)
    _hold_alike(native, _served(MODELS[0], ideal, late), sent, flags, Options())


@for_each("routing", ["round-robin", "least-loaded"])
def test_records_that_lie_in_a_file(native: ModuleType, routing: Routing) -> None:
    """Those of a long day; what requests ask for may be arrays that nobody can write to."""
    load = _Load([0.03] * 900, [900, 40, 2500], [200, 1, 90]).requests
    given = [np.asarray(load.arrival), load.prompt, load.output]
    for one in given:
        one.setflags(write=False)
    options = Options(fleet=Fleet(routing=routing), tokens_timed=False)
    served = _served(MODELS[0], False, True, 2)
    with runs_in(None):
        python = simulate(served, load, None, options).records
    with runs_in(native):
        found = simulate(served, load, None, replace(options, spool=Spool(given))).records
    assert found.spool is not None
    for name in ("admitted", "first", "finish", "status"):
        np.testing.assert_array_equal(np.asarray(getattr(found, name)), np.asarray(getattr(python, name)))
    assert not np.isnan(np.asarray(found.finish)).any()


@for_each("name", CASES)
@for_each(("model", "stages"), [(MODELS[0], 1), (MODELS[1], 1), (MODELS[0], 2), (MODELS[1], 4)])
def test_the_cases_of_the_loop_in_python(native: ModuleType, name: str, model: str, stages: int) -> None:
    traffic, flags, options = CASES[name]
    replicas = 3 if options.fleet.routing == "least-loaded" else 1
    _hold_alike(native, _served(model, False, True, replicas, stages), traffic, flags, options)


def test_usual_loads_run_in_c(native: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """No event of an ordinary run is left to Python, or the comparisons above would compare nothing."""

    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(plain_replica, "_events", never)
    monkeypatch.setattr(plain_replica.PlainReplica, "rest", never)
    for name in ("_send", "_take_back", "_again", "_run"):
        monkeypatch.setattr(plain_pipeline.PlainPipeline, name, never)
    with runs_in(native):
        for stages in (2, 3):
            found = simulate(_served(MODELS[0], False, True, stages=stages), open_loop(20.0))
            assert found.counts["finished"] == 600
        for model in MODELS:
            found = simulate(_served(model, False, True), open_loop(5.0))
            assert found.counts["finished"] == 600
        monkeypatch.setattr(ClusterRun, "_run_together", never)
        coming = Schedule(changes=((0.0, 2), (5.0, 4), (20.0, 1)), cold_start=3.0)
        for fleet in (Fleet(), Fleet(scaling=Schedule(changes=((0.0, 3),))), Fleet(scaling=coming)):
            options = Options(fleet=replace(fleet, routing="least-loaded"))
            found = simulate(_served(MODELS[0], False, True, 3), open_loop(20.0), None, options)
            assert found.counts["finished"] == 600
        assert len(found.lives) == 4


@for_each("routing", ["round-robin", "least-loaded"])
def test_who_watches_is_told_and_may_stop_it(native: ModuleType, routing: Routing) -> None:
    """The number of requests that are done is told every 64 of them; an exception ends the run."""
    told: list[int] = []

    def stop(done: int) -> None:
        told.append(done)
        if done == 256:
            raise KeyboardInterrupt

    served = _served(MODELS[0], False, True, 2)
    with runs_in(native):
        simulate(served, open_loop(20.0), None, Options(fleet=Fleet(routing=routing), progress=told.append))
        assert told == [*range(64, 600, 64)]
        told.clear()
        with pytest.raises(KeyboardInterrupt):
            simulate(served, open_loop(20.0), None, Options(fleet=Fleet(routing=routing), progress=stop))
    assert told == [64, 128, 192, 256]


def test_a_run_in_parts(native: ModuleType) -> None:
    """Pauses leave the figures as they are, and what has happened so far is that of Python."""
    found = []
    for module in (None, native):
        with runs_in(module):
            run = prepare(_served(MODELS[0], False, True, 2), open_loop(30.0))
            looks = [100, 300, 600]
            parts = zip(looks, run.cluster.in_parts(0, looks[:2]))
            seen = [(len(meters), run.so_far(look).ttft.tobytes()) for look, meters in parts]
            found.append((seen, figures_of(run.result(run.cluster.meters))))
    assert found[0] == found[1] and len(found[0][0]) == 3
