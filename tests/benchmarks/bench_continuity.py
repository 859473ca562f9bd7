"""Falls and leaps of times by one unit of work: ``python -m tests.benchmarks.bench_continuity``.

Deployments are drawn from the catalogue (model, device, engine, division, formats, calibrated or ideal). Of each every
time is walked along one quantity at a time: tokens of a prompt (alone, behind a cache, at an idle server), the batch,
the context and the tokens a sequence of a decode step, users in their steady state. Two neighbours differ by one unit.

A *fall* is a time that is shorter by more than 0.1 % with one unit more, a *leap* one that is longer by more than 5 %
and by more than in proportion to the quantity (a second sequence may take as long as the first).
Each is put to the operators that make most of it, and those to a cause: another ``kernel`` (which ``explain`` names),
``work`` that grew as much as the time (an operator's FLOP, bytes or messages), or the part of its time that moved.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from inferplan.answers.explain.switches import of_first_token, of_operator, of_users
from inferplan.api import deploy
from inferplan.catalog.files import names
from inferplan.errors import InferplanError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.phase import Batches, Phase, decode_cycle, price_batches, prompt_drain
from inferplan.estimate.roofline import OpCost
from inferplan.serving.admission import Rules
from inferplan.serving.first_token import IdlePrompt, first_token
from inferplan.serving.flags import Flags, rules_of, verifying, with_flags
from inferplan.serving.launches import launch_floors
from inferplan.serving.rounds import (
    Decodes,
    PromptLoad,
    Round,
    round_with_prompts,
)
from inferplan.serving.steady import SteadyState, UserLoad, steady_state
from inferplan.serving.techniques.speculation import Speculation
from inferplan.units import Num
from inferplan.work.step import WIDE

FALL, LEAP = 0.001, 0.05
NAMED = "named"
"""How causes of leaps begin that ``explain`` names: a switch of kernels, a step or a tile more, work that grew."""
FALLS = ("starts again", "mla.", "dispatch.", "combine.")
"""Of named causes those that may make a time fall: fewer positions to look at, another form of latent attention,
another way to the experts."""
CALIBRATED = ("h100-sxm", "h200-sxm", "b200-hgx", "a100-80gb-sxm", "l40s", "mi300x", "mi355x")
ENGINES = ("vllm", "sglang", "trtllm", "llama.cpp", "none")
FORMATS = ("bf16", "fp8", "w8a8", "w4a16", "nvfp4", "mxfp4", None)
EDGES = (48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384)
"""Powers of two, tiles, sizes of captured graphs and budgets of tokens."""


def units(longest: int) -> list[int]:
    """1 to 40, and three neighbours around each edge up to ``longest``."""
    near = {edge + off for edge in EDGES for off in (-1, 0, 1, 2)}
    return sorted({*range(1, 41), *near} & set(range(1, longest + 3)))


def draw(chosen: random.Random) -> dict[str, Any]:
    """The arguments of one deployment; half of the devices have constants of their own."""
    devices = CALIBRATED if chosen.random() < 0.5 else names("hardware")
    tp = chosen.choice((1, 1, 2, 4, 8))
    asked: dict[str, Any] = {
        "model": chosen.choice(names("models")),
        "gpu": chosen.choice(devices),
        "engine": chosen.choice(ENGINES),
        "quant": chosen.choice(FORMATS),
        "tp": tp,
        "pp": chosen.choice((1, 1, 1, 2, 3)),
        "dp": chosen.choice((1, 1, 1, 2)),
    }
    asked["ep"] = chosen.choice((1, 1, tp * asked["dp"]))
    return asked | ({"ideal": True} if chosen.random() < 0.1 else {})


def drawn(count: int, seed: int) -> Iterator[tuple[dict[str, Any], Deployment]]:
    """So many deployments that can be assembled, with what was asked."""
    chosen, found = random.Random(seed), 0
    while found < count:
        asked = draw(chosen)
        try:
            deployment = deploy(**asked)
        except InferplanError:
            continue
        if deployment.model.generation.kind == "autoregressive" and deployment.model.encoder is None:
            found += 1
            yield asked, deployment


@dataclass(frozen=True, kw_only=True)
class Walk:
    """A time along a quantity: that of a phase, or seconds where it is of more than one step; each takes a point or an
    array of them."""

    name: str
    points: Sequence[int]
    seconds: Callable[[Num], Num] | None = None
    phase: Callable[[Num], Phase] | None = None
    narrow: bool = False
    """Its points are new tokens a sequence, whose kernels change beyond ``WIDE``: a grid is of one side."""

    edges: Callable[[int], str] | None = None
    """What ``explain`` says of a leap beyond a point; nothing where it says nothing."""
    crowd: Callable[[float], Crowd] | None = None
    """The steady state at a point, if a time of one it is."""
    groups: int = 1
    """Into which the points are divided by whole sequences."""

    def whole(self, at: int) -> int:
        """What the fullest of the groups holds."""
        return -(-at // self.groups)

    def edge(self, at: int) -> str:
        return "" if self.edges is None else self.edges(at)

    def at(self, point: Num) -> Num:
        """Seconds at a point, or at each of several."""
        if self.seconds is not None:
            return self.seconds(point)
        assert self.phase is not None
        return self.phase(point).time

    def times(self) -> np.ndarray[Any, Any]:
        """Seconds at each point."""
        at = np.asarray(self.points, float)
        sides = [at[at <= WIDE], at[at > WIDE]] if self.narrow else [at]
        return np.concatenate([np.broadcast_to(self.at(side), side.shape) for side in sides if len(side)])


def walks(deployment: Deployment, tokens: int = 16384, chosen: random.Random | None = None) -> list[Walk]:
    """What is walked of a deployment."""
    chosen = chosen or random.Random(0)
    past, batch = chosen.choice((300.0, 2000.0, 30000.0)), chosen.choice((2.0, 8.0, 64.0))
    behind, prompts = chosen.choice((100.0, 5000.0)), chosen.choice((2.0, 16.0))
    longest = min(deployment.model.max_context or tokens, tokens)
    some = units(longest)
    groups = deployment.parallel.pp * deployment.parallel.dp
    found = [
        Walk(
            name="prompt tokens",
            points=some,
            phase=lambda at: prompt_drain(deployment, 1.0, at),
            narrow=True,
        ),
        Walk(
            name="prompt tokens of a batch behind a cache",
            points=units(2048),
            phase=lambda at: prompt_drain(deployment, prompts, at, behind),
            narrow=True,
        ),
        Walk(
            name="batch",
            groups=groups,
            points=units(512),
            phase=lambda at: decode_cycle(deployment, at, past),
        ),
        Walk(
            name="batch of prompts",
            groups=groups,
            points=units(64),
            phase=lambda at: prompt_drain(deployment, at, past / 10),
        ),
        Walk(
            name="context",
            points=units(longest),
            phase=lambda at: decode_cycle(deployment, batch, at),
        ),
        Walk(
            name="tokens per sequence",
            points=units(64),
            phase=lambda at: decode_cycle(deployment, batch, past, at),
            narrow=True,
        ),
    ]
    serving = deployment.engine.serving
    if serving.latency:
        budget = float(chosen.choice((512, 2048, 8192)))

        def server(at: Num) -> Num:
            return first_token(deployment, IdlePrompt(new=at, cached=0.0, budget=budget)).at_server

        def tail(at: Num) -> Phase:
            return prompt_drain(deployment, 1.0, at)

        def edges(at: int) -> str:
            says = " ".join(of_first_token(deployment, int(budget)))
            if at % budget == 0 and f"every {int(budget)} new" in says:
                return f"{NAMED}: a step more"
            if f"more than {at} tokens" in says:
                return f"{NAMED}: kernels launched one by one"
            anew = [size for size in (1024, 2048, 4096, 8192) if f"every {size} positions" in says]
            return f"{NAMED}: a chunk starts again" if any((at + 1) % size == 0 for size in anew) else ""

        found.append(
            Walk(name="prompt tokens at the server", points=some, seconds=server, phase=tail, narrow=True, edges=edges)
        )
    drafts = Speculation(length=3, acceptance=0.7) if chosen.random() < 0.3 else Speculation()
    prompt, output = chosen.choice(((100.0, 100.0), (1000.0, 100.0), (1000.0, 1000.0), (8000.0, 500.0)))
    if deployment.engine.name != "none":
        found += _of_users(deployment, float(prompt), float(output), drafts)
    return found


def _of_users(deployment: Deployment, prompt: float, output: float, drafts: Speculation) -> list[Walk]:
    """What is walked of the steady state."""

    def crowd(users: Num, asked: Num) -> Crowd:
        load = UserLoad(concurrency=users, prompt=asked, output=output)
        return Crowd(deployment=deployment, load=load, speculation=drafts)

    every, some = cache(lambda: crowd(np.array(units(512), float), prompt)), units(512)
    return [
        Walk(
            name="users, ttft without the wait for a place",
            points=some,
            seconds=lambda at: every().state.ttft - every().state.wait,
            crowd=lambda at: crowd(at, prompt),
        ),
        Walk(
            name="users, tpot", points=some, seconds=lambda at: every().state.tpot, crowd=lambda at: crowd(at, prompt)
        ),
        Walk(
            name="prompt tokens of 8 users, ttft",
            points=units(2048),
            seconds=lambda at: crowd(8.0, at).state.ttft,
            crowd=lambda at: crowd(8.0, at),
            narrow=True,
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class Break:
    """A fall or a leap between two neighbours."""

    walk: str
    at: int
    ratio: float
    cause: str

    @property
    def kind(self) -> str:
        return "fall" if self.ratio < 1.0 else "leap"

    @property
    def explained(self) -> bool:
        """Whether ``explain`` names its cause, and a fall's is one that may make work cheaper."""
        return self.cause.startswith(NAMED) and (self.kind == "leap" or any(word in self.cause for word in FALLS))


def breaks(walk: Walk) -> list[Break]:
    """The falls and leaps of a walk, with their causes."""
    times, found = walk.times(), []
    for index, (at, after) in enumerate(zip(walk.points, walk.points[1:])):
        ratio = times[index + 1] / times[index]
        most = max(1.0 + LEAP, after / at, walk.whole(after) / walk.whole(at)) + 1e-9
        if after == at + 1 and np.isfinite(ratio) and not 1.0 - FALL <= ratio <= most:
            cause = walk.edge(at)
            if not cause and walk.phase is not None:
                then, now = walk.phase(float(at)), walk.phase(float(after))
                cause = cause_of(then, now) if (now.time > then.time) == (ratio > 1.0) else ""
            if not cause and walk.crowd is not None:
                cause = walk.crowd(float(at)).cause(walk.crowd(float(after)))
            found.append(Break(walk=walk.name, at=at, ratio=float(ratio), cause=cause))
    return found


def cause_of(before: Phase, after: Phase) -> str:
    """What makes most of the difference between two phases: the operator, and what of it moved."""
    if float(np.max(before.microbatches)) != float(np.max(after.microbatches)):
        return f"{NAMED}: a batch more in flight"
    then, now = before.by_operator(), after.by_operator()
    sign = np.sign(float(after.time) - float(before.time))
    moved = {name: float(now.get(name, 0.0)) - float(then.get(name, 0.0)) for name in {*then, *now} if name != "host"}
    name = max(sorted(moved), key=lambda one: moved[one] * sign)
    old, new = _of_operator(before, name), _of_operator(after, name)
    if not old or not new:
        part = name.partition(".")[0]
        for kept in sorted({*then} & {*now}):
            pairs = zip(_of_operator(before, kept), _of_operator(after, kept))
            for (one, _), (other, _) in pairs if kept.startswith(f"{part}.") else ():
                if found := _switched(one, other, before.deployment):
                    return found
        return f"{name}: {'appears' if new else 'vanishes'}"
    pairs = [(one, other) for ones, others in zip(old, new) for one, other in zip(ones, others)]
    one, other = max(pairs, key=lambda pair: abs(np.log(float(np.max(pair[1].total / pair[0].total)))))
    return _switched(one, other, before.deployment) or _moved(one, other, before.deployment)


def _of_operator(phase: Phase, name: str) -> list[tuple[OpCost, OpCost]]:
    """The runs of an operator, in the fullest batch and in the mean one."""
    stages = zip(phase.stages, phase.mean_stages)
    return [pair for fullest, mean in stages for pair in zip(fullest, mean) if pair[0].op.name == name]


def _switched(one: OpCost, other: OpCost, deployment: Deployment) -> str:
    """The kernel that takes over from that of an operator, named where ``explain`` says so; nothing where none does."""
    if (one.op.kernel, one.op.label) == (other.op.kernel, other.op.label):
        return ""
    says = " ".join(text for cost in (one, other) for text in of_operator(cost.op, cost.fit, deployment))
    known = other.op.kernel in says or "whichever" in says or getattr(other.op, "mode", "-") in says
    return f"{f'{NAMED}: ' if known else ''}{one.op.kernel} {one.op.label} to {other.op.kernel} {other.op.label}"


def _moved(one: OpCost, other: OpCost, deployment: Deployment) -> str:
    """Why the same kernel takes another time."""
    kernel, grown = one.op.kernel, float(np.max(np.divide(other.total, one.total)))
    works = [
        float(getattr(other.work, key) * other.op.count) / float(getattr(one.work, key) * one.op.count)
        for key in ("flop", "bytes", "wire")
        if float(getattr(one.work, key))
    ]
    if grown > 1.0 and max(works, default=1.0) >= grown - 1e-9:
        return f"{NAMED}: work of {kernel}"
    says = " ".join(of_operator(one.op, one.fit, deployment))
    if grown < 1.0 and min(works, default=1.0) < 1.0 and "starts again" in says:
        return f"{NAMED}: less work of {kernel}, where a chunk or block of its mask starts again"
    for term in ("padding", "depth", "blocks", "windowed", "fallback"):
        if grown > 1.0 and f"({term})" in says:
            return f"{NAMED}: {term} of {kernel}"
    parts = {
        part: float(getattr(other, part)) - float(getattr(one, part))
        for part in ("time_math", "time_memory", "time_wire", "overhead")
    }
    part = max(parts, key=lambda key: parts[key] * np.sign(grown - 1.0))
    return f"{kernel}: {part} ({', '.join(one.fit.terms) if one.fit else 'ideal'})"


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """The steady state of some users of a deployment, and the rounds that it is made of."""

    deployment: Deployment
    load: UserLoad
    speculation: Speculation

    @cached_property
    def state(self) -> SteadyState:
        return steady_state(self.deployment, self.load, speculation=self.speculation)

    def each(self, requests: Num) -> float:
        """Of the requests of all engines those of one."""
        return float(requests) / (self.deployment.parallel.replicas * self.deployment.parallel.dp)

    @cached_property
    def rules(self) -> Rules:
        prompt, total = float(self.load.prompt), float(self.load.prompt + self.load.output)
        deployment = with_flags(self.deployment, Flags())
        rules = rules_of(deployment, Flags(), prompt, total, self.speculation.draft)
        return verifying(rules, self.speculation.width, deployment.parallel.pp)

    @cached_property
    def rounds(self) -> list[tuple[Round, Batches]]:
        """That of the decodes alone, and that with prompts (:mod:`inferplan.serving.steady`)."""
        prompt, output, deployment = float(self.load.prompt), float(self.load.output), self.deployment
        inside, batch = self.each(self.state.admitted), self.each(self.state.decoding)
        decodes = Decodes(max(batch, min(inside, 1.0)), prompt + max(output - 2.0, 0.0) / 2, prompt)
        alone = Round(decodes=decodes, speculation=self.speculation)
        coming = batch * self.speculation.tokens / max(output - 1.0, 1e-9)
        own, _, _ = round_with_prompts(deployment, alone, PromptLoad(coming, prompt, 0.0), float(self.rules.budget))
        return [(one, one.batches(deployment)) for one in (alone, own)]

    def cause(self, after: Crowd) -> str:
        """What makes most of the difference to those of another load."""
        ranks, deployment = self.deployment.coupled_ranks, self.deployment
        crowds = [min(max(one.each(one.state.admitted) * ranks - 1.0, 0.0), 1.0) for one in (self, after)]
        budget = float(self.rules.budget)
        says = " ".join(of_users(deployment, int(budget)))
        places = [float(np.max(one.state.admitted)) for one in (self, after)]
        if float(np.max(after.state.queue)) > 0.0 and places[1] < places[0] and "wait for a place" in says:
            return f"{NAMED}: fewer requests fit the cache"
        if crowds[0] != crowds[1]:
            return f"{NAMED}: a user alone meets no prompts of others"
        flights = [float(np.max(batches.microbatches)) for one in (self, after) for _, batches in one.rounds[:1]]
        if flights[0] != flights[1] and "in flight" in says:
            return f"{NAMED}: a batch more in flight"
        pieces = [prompts.new < one.load.prompt for one in (self, after) if (prompts := one.rounds[1][0].prompts)]
        if pieces[0] != pieces[1] and "one step more" in says:
            return f"{NAMED}: a step more"
        floors = [launch_floors(deployment, one.rounds[1][1].fullest) for one in (self, after)]
        if not np.allclose(floors[0], floors[1], rtol=0.01) and "one by one" in says:
            return f"{NAMED}: kernels launched one by one"
        phases = [[price_batches(deployment, batches, "cycle") for _, batches in one.rounds] for one in (self, after)]
        then, now = max(zip(*phases), key=lambda pair: abs(float(pair[1].time) - float(pair[0].time)))
        if abs(float(now.time / then.time) - 1.0) > LEAP / 2:
            return cause_of(then, now)
        shares = [float(np.max(one.state.prompt_share)) for one in (self, after)]
        if shares[1] / shares[0] > 1.0 + LEAP / 2:
            return f"{NAMED}: prompts of others, in proportion to them"
        queued = all(pieces) and shares[1] > 0.5 and "near capacity" in says
        return f"{NAMED}: prompts wait for each other near capacity" if queued else ""


def main() -> None:
    """Print every fall and leap by cause."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.bench_continuity")
    parser.add_argument("--deployments", type=int, default=500)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--each", action="store_true", help="print each fall and leap as it is found")
    options = parser.parse_args()
    seen: dict[tuple[str, str, str], list[tuple[float, str]]] = defaultdict(list)
    fell: Counter[str] = Counter()
    done, mute = 0, set()
    for number, (asked, deployment) in enumerate(drawn(options.deployments, options.seed)):
        done += 1
        for walk in walks(deployment, chosen=random.Random(options.seed * 100003 + number)):
            try:
                found = breaks(walk)
            except InferplanError:
                continue
            for kind in {one.kind for one in found}:
                fell[f"{kind} along {walk.name}"] += 1
            for one in found:
                mute |= set() if one.explained else {number}
                where = f"{asked} {one.at}->{one.at + 1}"
                seen[one.kind, walk.name, one.cause].append((one.ratio, where))
                if options.each:
                    print(one.kind, f"{one.ratio:.3f}", walk.name, one.cause, where, flush=True)
    print(f"{done} deployments, seed {options.seed}")
    print(f"{len(mute)} of them with a fall or leap without a named cause")
    for text, count in sorted(fell.items()):
        print(f"{count:4d} deployments with a {text}")
    for (kind, name, cause), cases in sorted(seen.items(), key=lambda item: (item[0][0], -len(item[1]))):
        worst = (min if kind == "fall" else max)(cases)
        print(f"{kind}\t{len(cases)}\t{name}\t{cause}\tworst {worst[0]:.3f} {worst[1]}")


if __name__ == "__main__":
    main()
