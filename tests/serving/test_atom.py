"""ATOM: what its sources set, and its scheduler replayed step by step (a step is 1 s and 0.1 s a token)."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble, load_engine
from inferplan.catalog.files import config_root, read_yaml
from inferplan.devices.engine import EngineFlags
from inferplan.errors import UnknownNameError, UsageError
from inferplan.estimate.bands import serving_bands
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.memory import Footprint
from inferplan.serving.rounds import overlaps, seen_late
from inferplan.serving.simulator import simulate
from inferplan.validation.importers import read_file
from inferplan.validation.importers.inferencex import version_of
from inferplan.validation.rows import Row
from inferplan.validation.run import Pricing, price_rows
from inferplan.validation.score import score
from inferplan.work.parallel import Parallelism
from tests.cases import for_each
from tests.serving.plain_time import CLOSE, plain, requests, seconds, served

R1 = Request(model="deepseek-r1", gpu="mi355x", engine="atom", parallel=Parallelism(tp=8), roles=(("kv", "fp8"),))


@for_each(
    ("version", "cut", "found"),
    [("0.1.1", False, False), ("0.1.3", False, False), ("0.1.6", True, True), ("0.1.8", True, True)],
)
def test_defaults_are_those_of_its_arguments(version: str, cut: bool, found: bool) -> None:
    """arg_utils.py at 0027562b and of August 2026; pull request 740 of May 2026 cuts prompts."""
    engine = load_engine(f"atom@{version}")
    tier = engine.defaults.tier(assemble(R1).hardware)
    assert (tier.token_budget, tier.max_sequences) == (16384, 512)
    assert (engine.defaults.memory_fraction, engine.defaults.block_size) == (0.9, 16)
    assert (engine.defaults.scheduler.chunked_prefill, engine.defaults.scheduler.prefix_caching) == (cut, found)
    assert not engine.batching.mixed


def test_a_version_that_nobody_read_has_no_defaults() -> None:
    with pytest.raises(UnknownNameError, match=r"atom 0\.2 is newer"):
        load_engine("atom@0.2")
    assert "defaults of 0.1.6, the oldest on file that is not older" in load_engine("atom@0.1.4").note


def test_its_cache_is_nine_tenths_of_the_memory_less_weights_and_activations() -> None:
    """model_runner.py get_num_blocks: min(planned - max(peak, current), free); nothing else is set aside."""
    footprint = Footprint(deployment=assemble(R1), batch=1.0, prompt=1.0, context=1.0)
    memory = footprint.deployment.hardware.usable
    (stage,) = footprint.stages
    held = footprint.weights + float(stage.activations(16384.0, 512.0))
    assert footprint.kv_pool == pytest.approx(0.9 * memory - held, rel=1e-3)


def test_steps_overlap_and_tokens_are_seen_when_their_step_ends() -> None:
    """tokenIDProcessor: step n + 1 is launched, then the copy of step n's tokens is awaited and handed out."""
    deployment = assemble(R1)
    assert overlaps(deployment) and not seen_late(deployment)


def test_the_kernels_of_another_engine_stand_for_its_own_without_an_error() -> None:
    """configs/calibration/mi355x.yaml: what stands under ``libraries`` is an engine's, the rest is nobody's."""
    atom, sglang = assemble(R1), assemble(replace(R1, engine="sglang"))
    libraries = read_yaml(config_root() / "calibration" / "mi355x.yaml")["libraries"].values()
    for kernel, formats in sglang.calibration.constants.items():
        for label, fit in formats.items():
            lent, of_engine = (
                atom.calibration.constants[kernel][label],
                any(label in o.get(kernel, {}) for o in libraries),
            )
            assert (lent.memory, lent.overhead) == (fit.memory, fit.overhead)
            assert (lent.basis, lent.error) == (("transferred", {}) if of_engine else (fit.basis, fit.error))
    assert "no kernels of atom are on file: sglang's stand for them" in atom.calibration.note
    assert serving_bands(atom, 1024.0) == {}


def test_what_was_measured_of_it_is_its_own(tmp_path: Path) -> None:
    """A file of one's own: its matmul is of no engine, its decode ATOM's, and SGLang's prompts alone are lent."""
    known = {"error": {"low": 0.9, "high": 1.1}}
    of = {
        "atom": {"attention.decode": {"bf16": {"memory": 0.4} | known}},
        "sglang": {
            "attention.decode": {"bf16": {"memory": 0.3} | known},
            "attention.prefill": {"bf16": {"memory": 0.2} | known},
            "matmul": {"bf16": {"memory": 0.1} | known},
        },
    }
    own = {"matmul": {"bf16": {"memory": 0.5} | known}}
    file = tmp_path / "own.yaml"
    file.write_text(json.dumps({"name": "mi355x", "constants": own, "libraries": of}), encoding="utf-8")
    found = assemble(replace(R1, calibration=str(file))).calibration
    priced = {name: found.constants[name]["bf16"] for name in ("matmul", "attention.decode", "attention.prefill")}
    assert {name: (fit.memory, fit.basis, fit.error) for name, fit in priced.items()} == {
        "matmul": (0.5, "calibrated", known["error"]),
        "attention.decode": (0.4, "calibrated", known["error"]),
        "attention.prefill": (0.2, "transferred", {}),
    }


def test_it_runs_on_amd_alone() -> None:
    with pytest.raises(UsageError, match="atom does not run on h200-sxm"):
        assemble(replace(R1, gpu="h200-sxm"))


def test_its_interval_counts_behind_its_delayer_and_both_between_attention_ranks() -> None:
    both, ranks = EngineFlags(prefill_decode_interval=10, enable_prefill_delayer=True), Parallelism(dp=8, ep=8)
    with pytest.raises(UsageError, match="obeys --prefill-decode-interval only behind its delayer"):
        assemble(replace(R1, flags=EngineFlags(prefill_decode_interval=10), parallel=ranks))
    with pytest.raises(UsageError, match="there is one rank here"):
        assemble(replace(R1, flags=both, parallel=Parallelism(tp=8)))
    with pytest.raises(UsageError, match="has no --enable-prefill-delayer that is known here"):
        assemble(replace(R1, flags=both, parallel=ranks, engine="atom@0.1.3"))
    found = assemble(replace(R1, flags=both, parallel=ranks)).cadence
    assert found.gap == 10 and found.delay is not None and found.delay.most == 200 and found.delay.fills is not None


# --- its scheduler ----------------------------------------------------------------------------------------------------


def atom(capacity: int = 1 << 20, budget: int = 4096, version: str = "0.1.3") -> Deployment:
    """A deployment of plain times under ATOM's policy and scheduler, steps not overlapped, no prefix cache."""
    engine = load_engine(f"atom@{version}")
    scheduler = engine.defaults.scheduler.model_dump() | {"prefix_caching": False, "source": ""}
    made = plain(
        capacity,
        policy=engine.policy,
        budget=budget,
        slots=512,
        **{k: v for k, v in scheduler.items() if k != "source"},
    )
    return replace(made, engine=made.engine.model_copy(update={"batching": engine.batching}))


def test_a_prompt_that_does_not_fit_the_rest_of_a_step_waits_for_the_next() -> None:
    """Budget 60: A and B (40 each) take a step each, of 5 s; 0.1.6 fills A's with 20 of B's, then 20 alone."""
    sent = requests((0.0, 40, 2), (0.0, 40, 2))
    first, last = served(atom(budget=60), sent)
    assert first == pytest.approx([5.0, 10.0], rel=CLOSE)
    assert last == pytest.approx([11.2, 11.2], rel=CLOSE)
    first, last = served(atom(budget=60, version="0.1.6"), sent)
    assert first == pytest.approx([7.0, 10.0], rel=CLOSE)
    assert last == pytest.approx([11.2, 11.2], rel=CLOSE)


def test_no_output_is_kept_free_and_the_last_goes_back() -> None:
    """Room for 100: two prompts of 40 start together and grow to 50 each, then B goes back and A goes on alone.

    SGLang would keep 0.7 of what both may still write free and start B when A is nearly done.
    """
    first, last = served(atom(capacity=100), requests((0.0, 40, 31), (0.0, 40, 31)))
    alone = seconds(80) + 10 * seconds(2) + 20 * seconds(1)
    assert first == pytest.approx([9.0, 9.0], rel=CLOSE)
    assert last == pytest.approx([alone, alone + seconds(51) + 19 * seconds(1)], rel=CLOSE)


def test_one_step_sends_back_as_many_as_it_needs() -> None:
    """2,600 prompts of one token fill a cache of 2,600, and each wants a place for its next: 1,300 go back at once."""
    engine = load_engine("atom@0.1.3")
    made = plain(capacity=2600, policy=engine.policy, budget=2600, slots=2600)
    made = replace(made, engine=made.engine.model_copy(update={"batching": engine.batching}))
    run = simulate(made, requests(*[(0.0, 1, 2)] * 2600))
    assert (run.preemptions, run.counts["finished"]) == (1300, 2600)


@dataclass(eq=False)
class Held:
    """A request of the replay: tokens it has (prompt and output), those that are in the cache, and its times."""

    prompt: int
    output: int
    tokens: int = 0
    cached: int = 0
    blocks: int = 0
    first: float = 0.0
    finish: float = 0.0


class Replay:
    """``Scheduler.schedule`` and ``preempt`` of ``atom/model_engine/scheduler.py`` with blocks of one token."""

    def __init__(self, capacity: int, budget: int, cut: bool) -> None:
        self.free, self.budget, self.cut, self.clock = capacity, budget, cut, 0.0
        self.waiting, self.running = deque[Held](), deque[Held]()

    def step(self) -> None:
        chunks = self.prompts()
        if not chunks:
            chunks = self.decodes()
        self.clock += seconds(sum(tokens for _, tokens in chunks))
        for one, tokens in chunks:
            one.cached += tokens
            if one.cached == one.tokens:
                self.emit(one)

    def prompts(self) -> list[tuple[Held, int]]:
        chunks, left = [], self.budget
        for one in self.running:
            if one.cached < one.tokens - 1 and left:
                chunks.append((one, min(one.tokens - one.cached, left)))
                left -= chunks[-1][1]
        while self.waiting and left:
            one = self.waiting[0]
            if self.free < one.tokens or (one.tokens > left and not self.cut):
                break
            self.waiting.popleft()
            self.free, one.blocks = self.free - one.tokens, one.tokens
            chunks.append((one, min(one.tokens, left)))
            left -= chunks[-1][1]
            self.running.append(one)
        return chunks

    def decodes(self) -> list[tuple[Held, int]]:
        chosen: list[Held] = []
        while self.running:
            one = self.running.popleft()
            while self.free < 1 and self.running:
                self.send_back(self.running.pop())
            if self.free < 1:
                self.send_back(one)
                break
            self.free, one.blocks = self.free - 1, one.blocks + 1
            chosen.append(one)
        self.running.extend(chosen)
        return [(one, 1) for one in chosen]

    def send_back(self, one: Held) -> None:
        self.free, one.blocks, one.cached = self.free + one.blocks, 0, 0
        self.waiting.appendleft(one)

    def emit(self, one: Held) -> None:
        one.tokens += 1
        one.first = one.first or self.clock
        if one.tokens - one.prompt == one.output:
            one.finish, self.free = self.clock, self.free + one.blocks
            self.running.remove(one)


def replayed(rows: Sequence[tuple[float, int, int]], capacity: int, budget: int, cut: bool) -> list[Held]:
    engine = Replay(capacity, budget, cut)
    coming = deque((arrival, Held(prompt, output, tokens=prompt)) for arrival, prompt, output in rows)
    all_of = [one for _, one in coming]
    while coming or engine.waiting or engine.running:
        if not engine.waiting and not engine.running:
            engine.clock = max(engine.clock, coming[0][0])
        while coming and coming[0][0] <= engine.clock:
            engine.waiting.append(coming.popleft()[1])
        engine.step()
    return all_of


@for_each(
    ("version", "capacity", "budget"),
    [("0.1.3", 1 << 20, 300), ("0.1.6", 1 << 20, 300), ("0.1.3", 700, 300), ("0.1.3", 1500, 700), ("0.1.6", 1500, 700)],
)
@for_each("seed", [1, 2])
def test_every_request_is_served_when_the_replay_serves_it(version: str, capacity: int, budget: int, seed: int) -> None:
    draws = np.random.default_rng(seed)
    arrival = np.cumsum(draws.exponential(12.0, 40))
    rows = [
        (float(at), int(p), int(o)) for at, p, o in zip(arrival, draws.integers(20, 280, 40), draws.integers(2, 90, 40))
    ]
    expected = replayed(rows, capacity, budget, version == "0.1.6")
    first, last = served(atom(capacity, budget, version), requests(*rows))
    assert first == pytest.approx([one.first for one in expected], rel=3 * CLOSE)
    assert last == pytest.approx([one.finish for one in expected], rel=3 * CLOSE)


# --- measured rows ----------------------------------------------------------------------------------------------------


@for_each(
    ("image", "version"),
    [
        ("rocm/atom:rocm7.1.1-ubuntu24.04-pytorch2.9-atom0.1.1-MI350x", "0.1.1"),
        ("rocm/atom:rocm7.2.4_ubuntu24.04_py3.12_pytorch_release_2.10.0_atom0.1.3", "0.1.3"),
        ("rocm/atom:rocm7.2.3_ubuntu24.04_py3.12_pytorch_release_2.10.0_atom20260511", ""),
    ],
)
def test_its_images_tell_its_version(image: str, version: str) -> None:
    assert version_of(image) == version


def atom_rows(shared: Path) -> list[Row]:
    rows = read_file(shared / "measured" / "serving_inferencex.csv", {})[1]
    return [one for one in rows if one.run is not None and one.run.engine == "atom" and not one.cells["suspect"]]


def test_drafts_of_measured_rows_are_no_more_than_they_were_accepted_to_be(shared: Path) -> None:
    """Tokens a step are the time between arrivals over that of a token: with one draft at most two, with three more."""
    for row in atom_rows(shared):
        assert row.run is not None
        if row.run.draft is None:
            continue
        assert row.run.draft_tokens in (1, 3)
        if row.cells["itl_mean_ms"]:
            each = float(row.cells["itl_mean_ms"]) / float(row.cells["tpot_mean_ms"])
            assert (1.5 < each <= 2.0) if row.run.draft_tokens == 1 else (2.0 < each <= 4.0), row.cells["id"]


def test_the_measured_rows_are_answered(shared: Path) -> None:
    """Nothing was fitted to them. One in four, for time; all 40: docs/accuracy-scale-out.md."""
    rows = atom_rows(shared)
    assert len(rows) == 40
    found = price_rows(rows[::4], Pricing(processes=1))
    assert all(one.prediction is not None for one in found)
    assert {one.row.run.engine_version for one in found if one.row.run} <= {"0.1", "0.1.1", "0.1.2", "0.1.3"}
    tpot, ttft = score(found, "tpot", "median"), score(found, "ttft", "median")
    assert tpot is not None and tpot.mape < 0.15
    assert ttft is not None and ttft.mape < 0.3
