"""Loads that the simulator and a replay of vLLM V1's scheduler serve, request by request, at the same step prices."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from inferplan.catalog.assemble import Request, assemble
from inferplan.devices.engine import ServingConstants
from inferplan.estimate.deployment import Deployment
from inferplan.serving.flags import Flags, rules_of, with_flags
from inferplan.serving.result import SimulationResult
from inferplan.serving.simulator import simulate, times_for
from inferplan.serving.step_times import Chunk, StepTimes
from inferplan.traffic import traces
from inferplan.traffic.block_names import FileNames
from inferplan.traffic.conversations import ThinkTime
from inferplan.traffic.requests import ClosedLoop, OpenLoop, Requests, SharedPrefix, Traffic, parse_lengths
from inferplan.work.parallel import Parallelism
from tests.conftest import ROOT
from tests.serving import vllm_replay

SHARED = Path(os.environ.get("INFERPLAN_SHARED") or ROOT.parent / "shared")
BLOCK = 16


@dataclass(frozen=True, kw_only=True)
class Case:
    """A load on one replica of vLLM whose front end and overlapped scheduling are left out.

    memory: share of the device that the engine may use; small ones leave little cache. trace: a file of the reference
    data, of which the first requests are sent. short: the cache is expected to run full.
    """

    name: str
    traffic: Traffic | None = None
    trace: str = ""
    count: int = 400
    flags: Flags = Flags()
    model: str = "llama-3.1-8b"
    tp: int = 1
    memory: float = 0.9
    shows: str = ""

    @property
    def available(self) -> bool:
        return not self.trace or (SHARED / "traces" / self.trace).is_file()

    @property
    def reacts(self) -> bool:
        """Answers bring requests."""
        traffic = self.traffic
        return traffic is not None and (isinstance(traffic.arrivals, ClosedLoop) or traffic.prefix.turns > 1)

    def deployment(self) -> Deployment:
        made = assemble(Request(model=self.model, gpu="h100-sxm", parallel=Parallelism(tp=self.tp)))
        plain = replace(made, engine=made.engine.model_copy(update={"serving": ServingConstants()}))
        return with_flags(plain, replace(self.flags, gpu_memory_utilization=self.memory))

    def requests(self, count: int) -> Requests:
        if self.trace:
            return traces.read_trace(SHARED / "traces" / self.trace).head(count)
        assert self.traffic is not None
        return replace(self.traffic, requests_count=count // self.traffic.samples).requests(BLOCK)


class Agreement(NamedTuple):
    """How far the simulator is from a replay."""

    requests: int
    ttft: float
    """Largest difference of a time to first token, relative to the longer of the two."""
    late: float
    """The same in seconds."""
    end: float
    """The same of a time to the last token."""
    steps: tuple[int, int]
    preemptions: tuple[int, int]
    hits: tuple[int, int]
    """Tokens found in the prefix cache by requests that were never preempted."""
    computed: tuple[int, int]
    """Prompt tokens computed, again after preemptions too."""

    @property
    def agrees(self) -> bool:
        """The same decisions and, but for rounding, the same times.

        A preempted request that finds all its blocks again computes one token, which one replay counts as a decode.
        """
        counts = all(ours == theirs for ours, theirs in (self.steps, self.preemptions, self.hits))
        again = 0 <= self.computed[0] - self.computed[1] <= self.preemptions[0]
        return counts and again and (self.ttft < 0.002 or self.late < 2e-4) and self.end < 0.0005


def _load(rate: float | None, prompt: str, output: str, users: int = 0, **more: Any) -> Traffic:
    prefix = SharedPrefix(**{key: more.pop(key) for key in ("tokens", "distinct", "turns", "think") if key in more})
    loop = ClosedLoop(concurrency=users, burst=True) if rate is None else OpenLoop(rate=rate)
    return Traffic(arrivals=loop, prompt=parse_lengths(prompt), output=parse_lengths(output), prefix=prefix, **more)


_SPREAD = ("lognormal:1024:0.8", "lognormal:256:0.8")
CASES = [
    Case(name="open, 8 requests/s", traffic=_load(8.0, *_SPREAD)),
    Case(name="open, equal lengths, 20 requests/s", traffic=_load(20.0, "1024", "256")),
    Case(name="open, small token budget", traffic=_load(7.0, *_SPREAD), flags=Flags(max_num_batched_tokens=512)),
    Case(
        name="open, few slots, prompts not cut",
        traffic=_load(6.0, "uniform:2048:0.2", "uniform:256:0.2"),
        flags=Flags(max_num_seqs=24, max_num_batched_tokens=4096, chunked_prefill=False),
    ),
    Case(name="open, short of cache", shows="preempt", traffic=_load(12.0, *_SPREAD), memory=0.295),
    Case(name="closed, 64 users", traffic=_load(None, *_SPREAD, users=64)),
    Case(
        name="closed, 128 users, short of cache",
        shows="preempt",
        traffic=_load(None, *_SPREAD, users=128),
        memory=0.295,
    ),
    Case(name="one shared prefix", shows="hits", traffic=_load(12.0, "256", "128", tokens=2048)),
    Case(
        name="40 shared prefixes, short of cache",
        shows="hits",
        traffic=_load(8.0, "256", "128", tokens=2048, distinct=40),
        memory=0.33,
    ),
    Case(name="5 samples per prompt", shows="hits", traffic=_load(3.0, *_SPREAD, samples=5)),
    Case(
        name="conversations of 4 turns",
        shows="hits",
        traffic=_load(6.1, "600", "200", turns=4, think=ThinkTime(kind="exponential", mean=10.0)),
    ),
    Case(
        name="conversations of 4 turns, short of cache",
        shows="preempt hits",
        traffic=_load(4.0, *_SPREAD, turns=4, think=ThinkTime(kind="exponential", mean=5.0)),
        memory=0.295,
    ),
    Case(
        name="24 users in conversations of 5 turns",
        shows="hits",
        traffic=_load(
            None, "300", "lognormal:300:0.5", users=24, turns=5, think=ThinkTime(kind="exponential", mean=3.0)
        ),
    ),
    Case(name="sliding windows (gemma-2-9b)", traffic=_load(4.1, *_SPREAD), model="gemma-2-9b"),
    Case(name="Azure 2023, code", trace="azure_llm_2023_code.csv", model="llama-3.1-70b", tp=4),
    Case(name="Azure 2023, conversation", trace="azure_llm_2023_conv.csv", model="llama-3.1-70b", tp=4),
    Case(name="Mooncake conversation", shows="hits", trace="mooncake_conversation.jsonl", tp=4, count=150),
]


def prices(times: StepTimes, pace: float = 1.0) -> vllm_replay.Price:
    """The simulator's own prices, of the decodes and the pieces of one step; pace: factor of each."""

    def price(decodes: list[int], pieces: list[tuple[int, int]]) -> float:
        batch = len(decodes)
        context = sum(decodes) / batch if batch else 0.0
        if not pieces:
            return pace * times.decode(batch, context)
        pairs = sum(new * past + new * (new + 1) / 2 for new, past in pieces)
        return pace * times.mixed(batch, context, Chunk(len(pieces), sum(new for new, _ in pieces), pairs))

    return price


PACES = tuple(1.0 + millionths * 1e-6 for millionths in (0, 1, -1, 2, -2, 4, -4))
"""Of the replay's steps. The simulator sums a run of steps in closed form, the replay step by step: their clocks part
by a few millionths, and a request that arrives within that of a step's end joins this step or the next.
"""


def agreement(case: Case, count: int, oracle: Any = vllm_replay) -> Agreement:
    """The agreement at the first pace that has one, else at the exact one."""
    found = [at_pace(case, count, oracle, PACES[0])]
    for pace in PACES[1:]:
        if found[-1].agrees:
            return found[-1]
        found.append(at_pace(case, count, oracle, pace))
    return found[-1] if found[-1].agrees else found[0]


def at_pace(case: Case, count: int, oracle: Any, pace: float) -> Agreement:
    """Simulator against a replay of that interface; one that knows no answers serves only what arrives by itself."""
    deployment, requests = case.deployment(), case.requests(count)
    typical = float(np.mean(requests.prompt)), float(np.mean(requests.prompt + requests.output))
    times = times_for(deployment, rules_of(deployment, case.flags, *typical), requests)
    arrivals = None if case.traffic is None else case.traffic.arrivals
    loop = arrivals if isinstance(arrivals, ClosedLoop) else None
    flags = replace(case.flags, gpu_memory_utilization=case.memory)
    run = simulate(deployment, requests if loop is None else requests.in_loop(loop), flags, times=times)
    computed, price = 0, prices(times, pace)

    def counted(decodes: list[int], pieces: list[tuple[int, int]]) -> float:
        nonlocal computed
        computed += sum(new for new, _ in pieces)
        return price(decodes, pieces)

    blocks = int(run.capacity // BLOCK)
    options = {"slots": run.slots, "budget": run.conditions["max_num_batched_tokens"], "blocks": blocks}
    options |= {"block_size": BLOCK, "chunked": run.conditions["chunked_prefill"]}
    sent = [
        oracle.Request(float(arrival), int(prompt), int(output), _names(requests, index))
        for index, (arrival, prompt, output) in enumerate(zip(_arrivals(requests), requests.prompt, requests.output))
    ]
    if case.reacts:
        options["answered"] = Users(sent, requests, loop).answered
    outcomes, steps = oracle.replay(sent, counted, **options)
    pairs = [(one.arrival, outcome) for one, outcome in zip(sent, outcomes)]
    if requests.follows is not None:  # the simulator numbers them as they came
        pairs.sort(key=lambda pair: pair[0])
    return _compared(run, pairs, steps, computed)


class Users:
    """Who sends what when an answer is there: the next turn, or a user's next request."""

    def __init__(self, sent: list[Any], requests: Requests, loop: ClosedLoop | None) -> None:
        self.sent, self.think = sent, requests.think
        before = [-1] * len(sent) if requests.follows is None else requests.follows.tolist()
        self.next = {last: index for index, last in enumerate(before) if last >= 0}
        first = [index for index, last in enumerate(before) if last < 0]
        users = len(first) if loop is None else loop.concurrency
        for index in first[:users] if loop is not None else ():
            sent[index].arrival = 0.0
        self.beginning = iter(first[users:])

    def answered(self, index: int, time: float) -> Any:
        following = self.next.get(index)
        following = next(self.beginning, None) if following is None else following
        if following is None:
            return None
        self.sent[following].arrival = time + (0.0 if self.think is None else float(self.think[following]))
        return self.sent[following]


def _arrivals(requests: Requests) -> list[float]:
    return [math.nan] * len(requests) if requests.arrival is None else requests.arrival.tolist()


def _names(requests: Requests, index: int) -> list[Any]:
    """Those that are given, and for all blocks after them some that nobody else has; a trace has one for so many
    blocks."""
    given: Sequence[Any] = () if requests.hashes is None else requests.hashes[index]
    if requests.hash_block > BLOCK:
        assert isinstance(requests.hashes, FileNames)
        names, tokens = requests.hashes.prompts[index]
        of = requests.hash_block // BLOCK
        given = [(names[at // of], at % of) for at in range(tokens // BLOCK)]
    full = int(requests.prompt[index] + requests.output[index] - 1) // BLOCK
    return [*given, *((index, "own", at) for at in range(len(given), full))]


def _compared(run: SimulationResult, pairs: list[tuple[float, Any]], steps: int, computed: int) -> Agreement:
    records = run.records
    arrival = np.array([time for time, _ in pairs])
    ours = {name: np.asarray(getattr(records, name)) - np.asarray(records.arrival) for name in ("first", "finish")}
    theirs = {name: np.array([getattr(one, name) for _, one in pairs]) - arrival for name in ("first", "finish")}
    off = {
        name: float(np.max(np.abs(ours[name] - theirs[name]) / np.maximum(ours[name], theirs[name]))) for name in ours
    }
    alone = [index for index, (_, one) in enumerate(pairs) if not one.preempted and index not in records.preempted]
    return Agreement(
        requests=len(pairs),
        ttft=off["first"],
        late=float(np.max(np.abs(ours["first"] - theirs["first"]))),
        end=off["finish"],
        steps=(sum(meter.steps for meter in run.meters), steps),
        preemptions=(run.preemptions, sum(one.preempted for _, one in pairs)),
        hits=(sum(records.cached.get(index, 0) for index in alone), sum(pairs[index][1].hits for index in alone)),
        computed=(round(sum(meter.prompt_tokens for meter in run.meters)), computed),
    )
