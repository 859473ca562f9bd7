"""The plain replica against the general one: the same figures to the last bit, whatever the load."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inferplan.serving import plain_replica
from inferplan.serving.flags import Flags
from inferplan.serving.fleet import Fleet
from inferplan.serving.options import Options
from inferplan.serving.replica import Replica
from inferplan.serving.result import SimulationResult
from inferplan.serving.simulator import simulate
from inferplan.traffic.requests import ClosedLoop, OpenLoop, Requests, Traffic, parse_lengths
from inferplan.work.parallel import Parallelism
from tests.cases import for_each
from tests.serving.conftest import deployment


def open_loop(rate: float, count: int = 600, output: str = "lognormal:256:0.8", **more: float) -> Traffic:
    prompt = parse_lengths("lognormal:1024:0.8")
    arrivals = OpenLoop(rate=rate, kind="gamma" if more else "poisson", **more)  # type: ignore[arg-type]
    return Traffic(arrivals=arrivals, requests_count=count, prompt=prompt, output=parse_lengths(output))


def _users(users: int, output: str = "lognormal:256:0.8") -> Traffic:
    lengths = {"prompt": parse_lengths("lognormal:1024:0.8"), "output": parse_lengths(output)}
    return Traffic(arrivals=ClosedLoop(concurrency=users), requests_count=8 * users, **lengths)


_LITTLE = Flags(gpu_memory_utilization=0.3)
CASES: dict[str, tuple[Traffic, Flags, Options]] = {
    "open": (open_loop(20.0), Flags(), Options()),
    "trimmed": (open_loop(20.0), Flags(), Options(trim=True)),
    "bursts": (open_loop(20.0, burstiness=0.1), Flags(), Options()),
    "single tokens": (open_loop(20.0, output="uniform:2:0.5"), Flags(), Options()),
    "short of cache": (open_loop(60.0, output="lognormal:800:0.8"), _LITTLE, Options()),
    "short of cache, no prefix cache": (
        open_loop(60.0, output="lognormal:800:0.8"),
        Flags(gpu_memory_utilization=0.3, prefix_caching=False),
        Options(),
    ),
    "few slots": (open_loop(30.0), Flags(max_num_seqs=16), Options()),
    "pieces of prompts": (open_loop(8.0), Flags(max_num_batched_tokens=512), Options()),
    "refused": (open_loop(20.0), Flags(max_model_len=1500), Options()),
    "users": (_users(32), Flags(), Options()),
    "users with one token": (_users(32, "uniform:2:0.5"), Flags(), Options()),
    "users short of cache": (_users(100, "lognormal:800:0.8"), _LITTLE, Options()),
    "least loaded": (open_loop(60.0), Flags(), Options(fleet=Fleet(routing="least-loaded"), trim=True)),
    "pools": (open_loop(60.0), Flags(), Options(fleet=Fleet(prefill=2, decode=2))),
}


def figures_of(run: SimulationResult) -> dict[str, object]:
    """All that a run has written down."""
    records = run.records
    names = ("admitted", "arrival", "first", "finish", "gaps", "gap_weights")
    return {
        **{name: np.asarray(getattr(records, name)).tobytes() for name in names},
        **{name: getattr(records, name) for name in ("status", "preempted", "refused")},
        "meters": [{**vars(meter), "kv": repr(meter.kv_seconds)} for meter in run.meters],
    }


OTHERS = {
    "windows": ("gpt-oss-20b", "open"),
    "windows, pieces of prompts": ("gpt-oss-20b", "pieces of prompts"),
    "windows, short of cache": ("gpt-oss-20b", "short of cache"),
    "states": ("granite-4.0-h-small", "pieces of prompts"),
    "states, pools": ("granite-4.0-h-small", "pools"),
}
"""Models of whose cache a part does not grow, and the case that each is tried in."""


def hold_to_the_general_one(name: str, overlapped: bool, late: bool = False, model: str = "llama-3.1-8b") -> None:
    """Run a case both ways."""
    traffic, flags, options = CASES[name]
    replicas = 3 if options.fleet.routing == "least-loaded" else 1
    served = deployment(model, ideal=not overlapped, parallel=Parallelism(replicas=replicas))
    seen = served.engine.serving.model_copy(update={"seen_late": late})
    served = replace(served, engine=served.engine.model_copy(update={"serving": seen}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_replica, "is_plain", lambda scheduler: False)
        general = figures_of(simulate(served, traffic, flags, options))
    assert figures_of(simulate(served, traffic, flags, options)) == general


@for_each(("overlapped", "late"), [(True, True), (True, False), (False, False)])
@for_each("name", CASES)
def test_the_plain_replica_is_the_general_one(name: str, overlapped: bool, late: bool) -> None:
    hold_to_the_general_one(name, overlapped, late)


@for_each("plain", [True, False])
def test_a_budget_that_no_step_fills_is_any_budget(plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request of 100 tokens decodes when two of 300 come: the largest step has 1 + 600 tokens."""
    if not plain:
        monkeypatch.setattr(plain_replica, "is_plain", lambda scheduler: False)
    sent = Requests(prompt=np.array([100, 300, 300]), output=np.full(3, 90), arrival=np.array([0.0, 0.3, 0.3]))
    runs = [simulate(deployment(), sent, Flags(max_num_batched_tokens=budget)) for budget in (601, 8192, 512)]
    assert [meter.largest_step for run in runs for meter in run.meters] == [601, 601, 512]
    ends = [np.asarray(run.records.finish) for run in runs]
    assert np.array_equal(ends[0], ends[1]) and not np.array_equal(ends[0], ends[2])


@for_each("name", OTHERS)
def test_with_a_cache_that_is_bounded_in_part(name: str) -> None:
    model, case = OTHERS[name]
    hold_to_the_general_one(case, True, model=model)


def test_usual_loads_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an ordinary run no step goes the general way, or the comparison above would compare nothing."""

    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Replica, "_decode_or_preempt", never)
    monkeypatch.setattr(Replica, "_prompt_step", never)
    for model in ("llama-3.1-8b", "gpt-oss-20b", "granite-4.0-h-small"):
        assert simulate(deployment(model, ideal=False, gpu="h200-sxm"), open_loop(5.0), None).counts["finished"] == 600
