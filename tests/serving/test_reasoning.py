"""Thoughts before answers: lengths by integration and enumeration, times by hand, plans one budget at a time."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from math import gamma as gamma_function
from typing import Any

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import UsageError
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.phase import decode_phase
from inferplan.estimate.run import estimate
from inferplan.planning.demand import Demand
from inferplan.planning.pools import _limit_on_ttft
from inferplan.serving.autoscaling import Schedule
from inferplan.serving.failures import Failure, Failures
from inferplan.serving.fleet import Fleet
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.traffic.reasoning import ReasoningLengths, above_at_most
from inferplan.traffic.requests import ClosedLoop, Lengths, OpenLoop, Requests, Slo, Traffic
from inferplan.work.parallel import Parallelism
from tests.cases import for_each
from tests.command import exit_code
from tests.serving.plain_time import CLOSE, plain, requests, seconds


def near(*values: float) -> object:
    return pytest.approx(list(values), rel=CLOSE)


def thinking(thought: Lengths, budget: int | None = None, end: int = 1, answer: float = 1.0) -> ReasoningLengths:
    return ReasoningLengths(thought=thought, answer=Lengths(mean=answer), budget=budget, end=end)


# --- lengths ----------------------------------------------------------------------------------------------------------


def density(kind: str, mean: float, spread: float, x: Any) -> Any:
    """The textbook densities of the three families by mean and standard deviation over it."""
    if kind == "normal":
        return np.exp(-(((x - mean) / (spread * mean)) ** 2) / 2) / (spread * mean * np.sqrt(2 * np.pi))
    if kind == "lognormal":
        sigma = np.sqrt(np.log(1 + spread**2))
        middle = np.log(mean) - sigma**2 / 2
        return np.exp(-(((np.log(x) - middle) / sigma) ** 2) / 2) / (x * sigma * np.sqrt(2 * np.pi))
    shape, scale = 1 / spread**2, mean * spread**2
    return x ** (shape - 1) * np.exp(-x / scale) / (gamma_function(shape) * scale**shape)


@for_each(
    ("kind", "mean", "spread", "budget"),
    [
        ("lognormal", 4000.0, 0.8, 1000),
        ("lognormal", 4000.0, 0.8, 16000),
        ("gamma", 2000.0, 0.6, 1500),
        ("normal", 3000.0, 0.1, 3100),
    ],
)
def test_a_cut_thought_is_as_long_as_an_integral_says(kind: Any, mean: float, spread: float, budget: int) -> None:
    """Mean and variance of ``min(X, budget)``, and the share above half a token more, by the midpoint rule."""
    step = 0.25
    x = np.arange(step / 2, 40 * mean, step)
    weight = density(kind, mean, spread, x) * step
    cut = np.minimum(x, budget)
    expected, share = float(np.sum(cut * weight)), float(np.sum(weight[x > budget + 0.5]))
    variance = float(np.sum(cut**2 * weight)) - expected**2
    found = thinking(Lengths(kind=kind, mean=mean, spread=spread), budget)
    assert found.before[0] == pytest.approx(expected + 1, rel=1e-6)
    assert found.before[1] == pytest.approx(variance, rel=1e-5)
    assert found.cut_share == pytest.approx(share, rel=1e-4)


def test_four_thoughts_by_hand() -> None:
    """Thoughts of 10, 20, 30 and 40 tokens, a budget of 25 and an end of 6: 11, 21, 31 and 31 tokens, half are cut."""
    found = thinking(Lengths(kind="empirical", values=(10, 20, 30, 40)), 25, 6, answer=100.0)
    assert found.cut_share == 0.5
    assert found.before == (23.5, pytest.approx(float(np.var([11, 21, 31, 31])), rel=1e-12))
    assert (found.average, found.variance) == (123.5, pytest.approx(68.75, rel=1e-9))
    assert found.under(None).before == (26.0, 125.0)  # 11, 21, 31 and 41
    whole, before = found.sample_parts(np.random.default_rng(0), 1000)
    assert set(before.tolist()) == {11, 21, 31}
    assert set((whole - before).tolist()) == {100}


@for_each(
    ("thought", "budget", "share", "mean"),
    [
        (Lengths(mean=40.0), 40, 0.0, 41.0),
        (Lengths(mean=40.0), 39, 1.0, 40.0),
        (Lengths(kind="uniform", mean=10.0, spread=0.1), 7, 0.3, 1 + (28 + 3 * 7) / 10),  # 1 to 10, three are cut
        (Lengths(kind="lognormal", mean=40.0, spread=0.5, most=90), 90, 0.0, None),
    ],
)
def test_what_is_no_longer_than_the_budget_is_not_cut(
    thought: Lengths, budget: int, share: float, mean: float | None
) -> None:
    found = thinking(thought, budget)
    assert found.cut_share == pytest.approx(share, abs=1e-12)
    assert found.before[0] == pytest.approx(thought.average + 1 if mean is None else mean, rel=1e-12)


def test_a_bound_on_long_sums_by_hand() -> None:
    """Two lengths of 1 to 10 tokens: a sum above 18 has one above 9 (a chance of 0.1 each), and 3 sums of 100 are; no
    sum is above 20. Behind 64 tokens that are fixed it is the share of the other part, here of 1 to 10 above 8. A
    thought of at most 10, its marker and an answer of at most 10 are 21 tokens."""
    dice = Lengths(kind="uniform", mean=10, spread=0.1)
    assert above_at_most([dice, dice], 18) == pytest.approx(0.2)
    assert above_at_most([dice, dice], 20) == 0.0
    assert above_at_most([dice, Lengths(mean=64)], 72) == pytest.approx(0.2)
    assert [above_at_most([Lengths(mean=64), Lengths(mean=8)], most) for most in (71, 72)] == [1.0, 0.0]
    asked = ReasoningLengths(thought=dice, answer=dice)
    assert above_at_most([asked], 21) == 0.0 < above_at_most([asked], 20)


def test_a_seed_thinks_the_same_under_every_budget() -> None:
    free = thinking(Lengths(kind="lognormal", mean=400.0, spread=0.8), answer=30.0)
    load = Traffic(arrivals=OpenLoop(rate=1.0), prompt=Lengths(mean=10.0), output=free, requests_count=500)
    whole = load.requests()
    cut = replace(load, output=free.under(300)).requests()
    assert whole.before is not None and cut.before is not None
    assert cut.before.tolist() == np.minimum(whole.before, 301).tolist()
    assert cut.arrival is not None and whole.arrival is not None
    assert cut.arrival.tolist() == whole.arrival.tolist()
    assert (cut.output - cut.before == 30).all()
    assert np.mean(whole.before > 301) == pytest.approx(free.under(300).cut_share, abs=0.05)
    assert free.before_quantile(0.95) == pytest.approx(np.quantile(whole.before, 0.95), rel=0.1)
    samples = replace(load, samples=2, requests_count=3).requests()
    assert samples.before is not None and samples.before.tolist()[::2] == samples.before.tolist()[1::2]
    assert (samples.output - samples.before == 30).all()


# --- times ------------------------------------------------------------------------------------------------------------


def answered(*rows: tuple[float, int, int, int], options: Options | None = None, **engine: Any) -> list[float]:
    """Seconds at which the first tokens of answers were seen, of rows of (arrival, prompt, thought, answer)."""
    sent = requests(
        *((arrival, prompt, before + answer) for arrival, prompt, before, answer in rows),
        before=np.array([before for _, _, before, _ in rows]),
    )
    return list(simulate(plain(**engine), sent, options=options).records.answered)


def test_an_answer_begins_behind_its_thought() -> None:
    """A prompt of 50 is 6 s; its token is the first of 7 before the answer, whose first is 7 steps of 1.1 s later."""
    assert answered((0.0, 50, 7, 3)) == near(6.0 + 7 * 1.1)
    assert answered((0.0, 50, 7, 1)) == near(6.0 + 7 * 1.1)  # and is the last one too


def test_tokens_of_answers_are_seen_when_others_are() -> None:
    """Where tokens are seen a step late, that of an answer of 3 is seen with the second, that of 1 with a step more."""
    late = {"overlapped": True, "seen_late": True}
    assert answered((0.0, 10, 4, 3), serving=late) == near(2.0 + 5 * 1.1)
    assert answered((0.0, 10, 4, 1), serving=late) == near(2.0 + 5 * 1.1)


def test_two_thoughts_at_once() -> None:
    """Prompts of 10 and 10 in a step of 3 s; both decode in steps of 1.2 s: B answers after 2, A after 5 of them.

    B has 2 + 2 tokens, so it leaves after its third step, and A's last two steps before its answer are of one token.
    """
    assert answered((0.0, 10, 5, 4), (0.0, 10, 2, 2)) == near(3.0 + 3 * 1.2 + 2 * 1.1, 3.0 + 2 * 1.2)


def test_a_prompt_beside_a_thought() -> None:
    """B's prompt of 40 beside A's first decode: 1 + 0.1 x 41 s; the next steps are of two tokens."""
    assert answered((0.0, 10, 3, 9), (0.5, 40, 2, 9)) == near(2.0 + 5.1 + 2 * 1.2, 2.0 + 5.1 + 2 * 1.2)


@for_each(("before", "after"), [(11, 0), (12, 1), (20, 9), (5, None)])
def test_a_thought_that_is_sent_back_goes_on(before: int, after: int | None) -> None:
    """Room for 100: both write 11 tokens, then B is sent back until A has written its 31.

    B's 12th token comes with its prompt of 51 tokens, computed again at 43 s + 6.1 s: that is the first of its answer
    behind 11 tokens of thought, and others follow in steps of 1.1 s. What it had answered before stays so.
    """
    found = answered((0.0, 40, 2, 29), (0.0, 40, before, 31 - before), capacity=100)
    expected = 9.0 + before * 1.2 if after is None else 43.0 + seconds(51) + after * 1.1
    assert found == near(9.0 + 2 * 1.2, expected)


def test_a_thought_sent_back_twice_is_answered_once() -> None:
    """The place in the batch at which B would have answered, had it not been sent back, is passed by A alone."""
    found = answered((0.0, 40, 30, 1), (0.0, 40, 14, 17), capacity=100)
    assert found == near(9.0 + 10 * 1.2 + 20 * 1.1, 43.0 + seconds(51) + 3 * 1.1)


@for_each("parallel", [Parallelism(), Parallelism(pp=2), Parallelism(replicas=2)])
@for_each("policy", ["vllm", "sglang", "static"])
def test_thoughts_change_no_other_time(parallel: Parallelism, policy: str) -> None:
    """Requests that are told apart into thought and answer run as those of the same lengths do; each answer begins
    where a request would end that has no more tokens than its thought and one.
    """
    rng = np.random.default_rng(3)
    rows = [(0.4 * k, int(rng.integers(5, 60)), int(rng.integers(2, 30))) for k in range(40)]
    outputs = [(arrival, prompt, before + 1 + int(rng.integers(0, 9))) for arrival, prompt, before in rows]
    made = plain(policy=policy, parallel=parallel, slots=16)
    sent, before = requests(*outputs), np.array([row[2] for row in rows])
    without, found = simulate(made, sent), simulate(made, replace(sent, before=before))
    for name in ("first", "finish", "admitted"):
        assert np.asarray(getattr(found.records, name)) == pytest.approx(np.asarray(getattr(without.records, name)))
    times = np.asarray(found.records.answered)
    assert (times > np.asarray(found.records.first)).all()
    assert (times <= np.asarray(found.records.finish)).all()
    whole = before + 1 == np.array([row[2] for row in outputs])
    assert whole.any() and (times == np.asarray(found.records.finish))[whole].all()
    assert not without.answer_ttft.size


def test_engines_in_processes_of_their_own_say_the_same() -> None:
    made = plain(parallel=Parallelism(replicas=2))
    sent = requests(*((0.5 * k, 20, 12) for k in range(20)), before=np.arange(20) % 9 + 2)
    one, two = (simulate(made, sent, options=Options(jobs=jobs)).records for jobs in (1, 2))
    assert list(one.answered) == list(two.answered)
    assert not np.isnan(np.asarray(one.answered)).any()


def test_pools_apart_think_where_they_decode() -> None:
    """A prompt of 10 in 2 s elsewhere, its cache is there at once: four more tokens of 1.1 s, then the answer's."""
    fleet = Fleet(prefill=1, decode=1)
    assert answered((0.0, 10, 5, 3), options=Options(fleet=fleet), parallel=Parallelism()) == near(2.0 + 5 * 1.1)


def test_a_thought_whose_replica_fails_begins_anew() -> None:
    """A prompt of 10 and 9 more tokens take 11.9 s, the answer begins at 7.5 s. One of two is lost at 10 s: its request
    waits for the other's and answers at 11.9 s + 7.5 s.
    """
    failing = Failures(at=(Failure(at=10.0),), mode="cut", per_node=None)
    scaling = Schedule(changes=((0.0, 2),), cold_start=1000.0)
    options = Options(fleet=Fleet(routing="least-loaded", scaling=scaling, failures=failing))
    found = answered((0.0, 10, 5, 5), (0.0, 10, 5, 5), options=options, slots=1)
    assert sorted(found) == near(7.5, 11.9 + 7.5)


def test_the_figures_of_a_run() -> None:
    """Answers at 6 + 7.7 s and, for a request at 20 s, 6 + 2.2 s; a limit of 10 s is kept by the second alone."""
    sent = requests((0.0, 50, 10), (20.0, 50, 5), before=np.array([7, 2]))
    run = simulate(plain(), sent, options=Options(slo=Slo(answer_ttft=10.0)))
    assert list(run.answer_ttft) == near(13.7, 8.2)
    record = run.to_dict()
    assert record["answer_ttft_s"]["mean"] == pytest.approx(10.95, rel=CLOSE)
    assert record["slo_attained"] == 0.5
    assert record["reasoning"]["before_answer_tokens_mean"] == 4.5
    assert record["reasoning"]["answer_tokens_mean"] == 3.0


def test_the_band_of_an_answer_is_that_of_its_parts() -> None:
    """Of 13.7 s and 8.2 s 12 s are TTFT: 0.548 times its factors, and the rest times those of the steps."""
    sent = requests((0.0, 50, 10), (20.0, 50, 5), before=np.array([7, 2]))
    run = replace(simulate(plain(), sent), bands={"ttft": (0.5, 2.0), "tpot": (0.8, 1.1)})
    share = 12.0 / 21.9
    expected = share * 0.5 + (1 - share) * 0.8, share * 2.0 + (1 - share) * 1.1
    assert run.band("answer_ttft") == pytest.approx(expected, rel=CLOSE)
    assert run.to_dict()["answer_ttft_low_s"] == pytest.approx(10.95 * expected[0], rel=CLOSE)
    assert replace(run, bands={"ttft": (0.5, 2.0)}).band("answer_ttft") is None


# --- one price --------------------------------------------------------------------------------------------------------


def test_a_lone_answer_is_the_closed_form() -> None:
    """TTFT and the sum of 701 single decode steps, one after another; the simulator says the same of a lone request."""
    made = assemble(Request(model="qwen3-8b", gpu="h100-sxm", ideal=True))
    load = StaticLoad(batch=1.0, prompt=512.0, output=751.0, before=701.0)
    found = estimate(made, load)
    steps = float(np.sum(decode_phase(made, load, 512.0 + np.arange(701.0)).time))
    assert found.answer_ttft == pytest.approx(found.ttft + steps, rel=1e-9)
    assert found.e2el == pytest.approx(float(found.ttft) + 750 * float(found.tpot), rel=1e-12)
    output = thinking(Lengths(mean=2000.0), 700, answer=50.0)
    one = Traffic(arrivals=ClosedLoop(concurrency=1), prompt=Lengths(mean=512.0), output=output, requests_count=1)
    run = simulate(made, one)
    assert float(run.answer_ttft[0]) == pytest.approx(float(found.answer_ttft), rel=1e-6)
    assert float(run.e2el[0]) == pytest.approx(float(found.e2el), rel=1e-6)


def printed(patch: pytest.MonkeyPatch, output: pytest.CaptureFixture[str], *words: str) -> Any:
    assert exit_code(patch, *words, "--format", "json") == 0
    return json.loads(output.readouterr().out)


def test_estimate_takes_the_mean_thought(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """700 of 2000 tokens, a forced end of 21 and an answer of 50."""
    words = ("estimate", "qwen3-8b", "--gpu", "h100-sxm", "--output", "50", "--thinking-tokens", "2k")
    found = printed(monkeypatch, capsys, *words, "--thinking-budget", "700", "--thinking-end", "21")
    assert (found["load"]["output_tokens"], found["load"]["before_answer_tokens"]) == (771, 721)
    assert found["reasoning"] == {"budget_tokens": 700, "cut_share": 1.0, "before_answer_tokens_mean": 721.0}
    assert found["ttft_s"] < found["answer_ttft_s"] < found["e2el_s"]


# --- plans ------------------------------------------------------------------------------------------------------------

PLAN = ("plan", "qwen3-8b", "--gpu", "h100-sxm", "--quant", "native", "--most", "1", "--aggregated", "--rate", "4")
PLAN += ("--token-budget", "2048")
THOUGHTS = ("--prompt", "512", "--output", "100", "--thinking-tokens", "lognormal:600:0.6")


@lru_cache(maxsize=1)
def _budgets() -> dict[str, Any]:
    """Three budgets, the last of them under a limit that it cannot keep: 7 ms a token, one after another."""
    import contextlib
    import io

    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        limits = ("--answer-ttft", "5s", "--thinking-budget", "200,400,none")
        assert exit_code(patch, *PLAN, *THOUGHTS, *limits, "--format", "json") == 0
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def test_budgets_side_by_side() -> None:
    """A thought of 200 or 400 tokens takes 1.4 s or 2.8 s alone; the 95th percentile of free ones, 1,283, takes 9 s."""
    short, long, free = _budgets()["budgets"]
    assert (short["budget_tokens"], long["budget_tokens"], free["budget_tokens"]) == (200, 400, None)
    assert 0.9 < short["cut_share"] < 1 and long["cut_share"] < short["cut_share"] and free["cut_share"] == 0
    assert free["plan"] is None and free["cost_per_request"] is None
    assert "TTFT of the answer p95 < 5.00 s" in free["infeasible"]["what"]
    for one in (short, long):
        plan = one["plan"]
        assert plan["answer_ttft_s"] <= 5.0
        assert one["cost_per_request"] == pytest.approx(plan["cost"] / (4 * 3600), rel=1e-12)
        assert plan["launch"].startswith("vllm serve")
    assert short["plan"]["screened_capacity_requests_per_s"] > long["plan"]["screened_capacity_requests_per_s"]


def test_a_row_is_the_plan_of_its_budget_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*PLAN, *THOUGHTS, "--answer-ttft", "5s", "--thinking-budget", "400")
    alone, row = printed(monkeypatch, capsys, *words), _budgets()["budgets"][1]
    assert {name: alone["plan"][name] for name in row["plan"]} == row["plan"]
    assert alone["question"]["output_tokens"] == pytest.approx(row["output_tokens_mean"], rel=1e-12)
    reasoning = alone["plan"]["simulation"]["reasoning"]
    assert reasoning["before_answer_tokens_mean"] == pytest.approx(row["before_answer_tokens_mean"], rel=0.02)


# --- refusals ---------------------------------------------------------------------------------------------------------


@for_each(
    "lengths",
    [
        lambda: thinking(Lengths(mean=10.0), 0),
        lambda: thinking(Lengths(mean=10.0), 5, 0),
        lambda: thinking(Lengths(mean=10.0), None, 7),
    ],
)
def test_a_budget_is_a_count_and_an_end_needs_one(lengths: Any) -> None:
    with pytest.raises(UsageError, match="--thinking"):
        lengths()


SIMULATE = ("simulate", "qwen3-8b", "--gpu", "h100-sxm", "--rate", "1")


@for_each(
    ("words", "said"),
    [
        ((*SIMULATE, "--thinking-budget", "4k"), "--thinking-budget belongs to thoughts, and there are no thoughts"),
        ((*SIMULATE, "--thinking-end", "4"), "--thinking-end belongs to thoughts, and there are no thoughts"),
        ((*SIMULATE, "--answer-ttft", "4s"), "there are no thoughts"),
        (
            ("estimate", "qwen3-8b", "--gpu", "h100-sxm", "--thinking-budget", "4k"),
            "belongs to thoughts, and there are no thoughts",
        ),
        (
            ("estimate", "qwen3-8b", "--gpu", "h100-sxm", "--thinking-tokens", "4k", "--concurrency", "8"),
            "thoughts before answers (--thinking-tokens) and",
        ),
        (
            ("estimate", "qwen3-8b", "--gpu", "h100-sxm", "--thinking-tokens", "4k", "--no-kv-cache"),
            "without a KV cache",
        ),
        (("estimate", "bge-m3", "--gpu", "h100-sxm", "--thinking-tokens", "4k"), "a model with an encoder"),
        ((*SIMULATE[:1], "bge-m3", *SIMULATE[2:], "--thinking-tokens", "4k"), "a model with an encoder"),
        ((*PLAN, "--prompt", "512", "--output", "100", "--answer-ttft", "1s"), "there are no thoughts"),
        ((*PLAN, *THOUGHTS, "--ttft", "1s", "--thinking-budget", "1k,soon"), "--thinking-budget: 'soon'"),
        (
            ("report", *PLAN[1:], *THOUGHTS, "--ttft", "1s", "--thinking-budget", "1k,2k", "-o", "x.md"),
            "a page takes one budget",
        ),
    ],
)
def test_what_is_refused(
    words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(monkeypatch, *words) == 2
    assert said in capsys.readouterr().err


def test_a_trace_does_not_say_what_is_thought(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt,output\n0,10,10\n1,10,10\n")
    for command in (SIMULATE[:4], (*PLAN[:9], "--ttft", "1s")):
        assert exit_code(monkeypatch, *command, "--trace", str(trace), "--thinking-tokens", "4k") == 2
        assert "--thinking-tokens and --trace exclude each other" in capsys.readouterr().err


def test_pools_leave_to_prompts_what_thoughts_do_not_take() -> None:
    """401 tokens of 10 ms before an answer that may begin after 10 s: 5.99 s; 4 s where the first token is limited."""
    demand = Demand(prompt=Lengths(mean=10.0), output=thinking(Lengths(mean=400.0)), rate=1.0)
    assert _limit_on_ttft(Slo(answer_ttft=10.0), demand, 0.01).seconds == pytest.approx(5.99)
    assert _limit_on_ttft(Slo(answer_ttft=10.0, ttft=4.0), demand, 0.01).seconds == 4.0


def test_a_demand_says_what_is_thought() -> None:
    demand = Demand(prompt=Lengths(mean=10.0), output=thinking(Lengths(mean=90.0), 50, answer=10.0), rate=1.0)
    assert "61 out (51 of them before the answer)" in demand.describe()
    assert isinstance(demand.traffic(1.0, 10).requests(), Requests)
