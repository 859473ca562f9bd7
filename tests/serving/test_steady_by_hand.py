"""The closed form where it can be worked out by hand: one user, long prompts in chunks, what a cache admits."""

from __future__ import annotations

from dataclasses import replace
from math import exp

import numpy as np
import pytest

from inferplan.devices.constants import Calibration
from inferplan.estimate.deployment import Deployment
from inferplan.serving.flags import Flags, rules_of, with_flags
from inferplan.serving.rounds import Decodes, PromptLoad, holding, loaded_rounds
from inferplan.serving.simulator import simulate
from inferplan.serving.steady import UserLoad, admissible, steady_state
from inferplan.traffic.requests import ClosedLoop, Lengths, Traffic
from inferplan.work.parallel import Parallelism
from tests.builders import chip, dense, deploy
from tests.cases import for_each
from tests.serving.plain_time import CLOSE, EACH, HOST, plain, seconds

HEADS, WIDTH, FF, PEAK = 32, 512, 64, 1e12


def attentive(engine: str = "vllm") -> Deployment:
    """Memory costs nothing, so a prompt costs its FLOP: most of them in the attention of 32 heads of 128."""
    model = dense(layers=1, d_model=WIDTH, heads=HEADS, head_dim=128, d_ff=FF, vocab=64)
    return deploy(model, chip(1e21, PEAK, usable=80e9), engine=engine, calibration=Calibration(name="x", fused=True))


def prompt_seconds(tokens: int) -> float:
    """2 FLOP a matrix element and token, 4*heads*head_dim for each of the tokens*(tokens + 1)/2 pairs."""
    matrices = 4 * WIDTH * HEADS * 128 + 3 * WIDTH * FF
    return (2 * matrices * tokens + 4 * HEADS * 128 * tokens * (tokens + 1) / 2) / PEAK


@for_each("prompt", [512, 2000, 2048, 2049, 16384])
def test_a_long_prompt_alone_attends_to_all_of_its_chunks(prompt: int) -> None:
    """In chunks of 512 each token still sees every token before it, in the closed form and in the simulator.

    One user, two output tokens whose one decode step is less than a thousandth of the time.
    """
    flags = Flags(max_num_batched_tokens=512, max_num_seqs=4)
    served = attentive()
    front = served.engine.serving
    outside = front.latency + front.front_request + front.front_token * prompt
    expected = prompt_seconds(prompt) + outside
    floor = {"eager_layer": 0.0, "overlapped": False, "seen_late": False}
    plainly = served.engine.model_copy(update={"serving": front.model_copy(update=floor)})
    served = replace(served, engine=plainly)
    closed = steady_state(served, UserLoad(concurrency=1.0, prompt=float(prompt), output=2.0), flags)
    assert float(closed.ttft) == pytest.approx(expected, rel=1e-2)
    traffic = Traffic(
        arrivals=ClosedLoop(concurrency=1),
        prompt=Lengths(mean=prompt),
        output=Lengths(mean=2),
        requests_count=1,
    )
    assert float(simulate(served, traffic, flags).ttft[0]) == pytest.approx(expected, rel=5e-3)
    rounds = loaded_rounds(served, Decodes(1.0, 1.0), PromptLoad(1e-9, float(prompt), 0.0), 512.0)
    among_others = float(rounds.own.passage + (rounds.pieces - 1.0) * rounds.own.interval)
    assert among_others == pytest.approx(prompt_seconds(prompt), rel=1e-2)


def test_the_front_end_and_the_floor_are_part_of_the_first_token() -> None:
    """0.5 s + 0.2 s + 55 x 0.01 s more, and (2 x 6.5^4)^(1/4) in place of 6.5: launches as long as the step.

    SGLang's policy, where a step that holds a prompt holds nothing else.
    """
    serving = {"latency": "500 ms", "front_request": "200 ms", "front_token": "10 ms", "eager_layer": "100 ms"}
    load = UserLoad(concurrency=1.0, prompt=55.0, output=100_001.0)
    bare, real = (float(steady_state(plain(policy="sglang", serving=given), load).ttft) for given in ({}, serving))
    assert real - bare == pytest.approx(0.5 + 0.2 + 0.55 + 6.5 * (2**0.25 - 1), rel=1e-3)
    rounds = loaded_rounds(
        plain(policy="sglang", serving=serving), Decodes(1.0, 55.0), PromptLoad(1e-9, 55.0, 0.0), 4096
    )
    assert float(rounds.own.total) == pytest.approx(6.5 * 2**0.25, rel=1e-3)


@for_each(("users", "seen_late", "steps"), [(1, 0, 0), (2, 0, 1.2), (1, 1, 1.1), (2, 1, 2 * 1.2)])
def test_overlapped_scheduling_is_a_step_late_and_another_until_it_is_seen(
    users: int, seen_late: int, steps: float
) -> None:
    """Where others decode the prompt joins a step later; where tokens are seen late it is one more, alone too.

    A user alone finds no step in progress: 1.1 s, one step of one token. Beside another they are steps of two tokens.
    """
    load = UserLoad(concurrency=float(users), prompt=55.0, output=100_001.0)
    serving = {"overlapped": True, "seen_late": bool(seen_late)}
    bare, late = (float(steady_state(plain(serving=given), load).ttft) for given in ({}, serving))
    assert late - bare == pytest.approx(steps, rel=1e-3, abs=1e-4)


def test_a_user_alone_waits_for_nobody() -> None:
    """A prompt of 55 and 99 decode steps: 1 + 5.5 s, then 1.1 s a token; nothing of the step before, which is over."""
    closed = steady_state(plain(), UserLoad(concurrency=1.0, prompt=55.0, output=100.0))
    assert float(closed.ttft) == pytest.approx(seconds(55), rel=CLOSE)
    assert float(closed.tpot) == pytest.approx(seconds(1), rel=CLOSE)
    assert float(closed.request_rate) == pytest.approx(1 / (seconds(55) + 99 * seconds(1)), rel=CLOSE)


def admitted(capacity: int, prompt: float, output: float, **scheduler: object) -> float:
    deployment = with_flags(plain(capacity=capacity, slots=64, **scheduler), Flags())  # type: ignore[arg-type]
    return float(admissible(rules_of(deployment, Flags(), prompt, prompt + output), prompt, output))


def test_what_a_cache_admits() -> None:
    """10,000 tokens; requests of 100 + 200: half of the output each on average, or all of it kept from the start.

    SGLang (0.098 of the remaining output kept when it has fallen): 1 + (10000 - 300)/(100 + 200/2 * 1.098).
    """
    assert admitted(10_000, 100.0, 200.0) == pytest.approx(10_000 / 200)
    assert admitted(10_000, 100.0, 200.0, admission="reserve") == 10_000 // 300
    assert admitted(10_000, 100.0, 200.0, admission="ratio") == pytest.approx(1 + 9700 / (100 + 100 * 1.098))
    assert admitted(1_000_000, 100.0, 200.0) == 64  # slots
    long = 1 + (100_000 - 100 - 4096) / (100 + 5000 * 1.098)  # of the 10,000 that a new one may write 4,096 count
    assert admitted(100_000, 100.0, 10_000.0, admission="ratio") == pytest.approx(long)
    assert admitted(299, 100.0, 200.0) == 0 and admitted(300, 100.0, 200.0) == pytest.approx(1.5)


def test_prompts_come_with_the_steps_in_proportion() -> None:
    """SGLang, four users of 10 + 101 tokens: x = B/100 prompts a step, in 1 - exp(-x) of the steps, alone in them.

    TPOT = t(B) + (1 - exp(-x)) * t(prompts of such a step), B from Little's law: solved here by bisection.
    """
    closed = steady_state(plain(policy="sglang"), UserLoad(concurrency=4.0, prompt=10.0, output=101.0))
    batch = float(closed.decoding)
    coming = batch / 100
    share = 1 - exp(-coming)
    number = max(coming / share, 1.0)
    step = seconds(batch) + share * seconds(10 * number)
    assert float(closed.prompt_share) == pytest.approx(share, rel=1e-6)
    assert float(closed.tpot) == pytest.approx(step, rel=1e-3)
    assert float(closed.request_rate) * float(closed.e2el) == pytest.approx(4.0, rel=1e-6)
    assert batch == pytest.approx(float(closed.request_rate) * 100 * float(closed.tpot), rel=1e-5)


def test_who_waits_waits_for_the_queue_before_him() -> None:
    """Eight users on two slots: six wait; each completion lets one in."""
    closed = steady_state(plain(slots=2), UserLoad(concurrency=8.0, prompt=10.0, output=11.0))
    assert float(closed.queue) == 6
    assert float(closed.wait) == pytest.approx(6 / float(closed.request_rate), rel=1e-9)
    assert float(closed.ttft) > float(closed.wait)
    run = simulate(
        plain(slots=2),
        Traffic(
            arrivals=ClosedLoop(concurrency=8), prompt=Lengths(mean=10), output=Lengths(mean=11), requests_count=400
        ),
    )
    assert float(np.mean(run.ttft[40:])) == pytest.approx(float(closed.ttft), rel=0.1)


def test_a_step_is_what_the_deployment_says() -> None:
    closed = steady_state(plain(), UserLoad(concurrency=1.0, prompt=10.0, output=100_001.0))
    assert float(closed.tpot) == pytest.approx(HOST + EACH, rel=1e-3)


def test_any_rank_with_a_piece_of_a_prompt_makes_the_round_long() -> None:
    """A prompt of 8,000 tokens in pieces of 1,000 keeps a rank busy for 8 rounds: at 0.02 prompts a round and rank each
    of 8 ranks holds a piece in 0.16 of the rounds, and none does in (1 - 0.16)^8 = 0.2479 of them.
    """
    held = holding(0.02, 8000.0, 1000.0, (1.0, 8))
    assert held.share == pytest.approx(1 - 0.2479, abs=1e-4)
    assert holding(0.02, 8000.0, 16000.0, (1.0, 8)).share == pytest.approx(1 - exp(-0.16), rel=1e-9)  # in one piece


def test_a_user_meets_the_steps_of_ranks_that_share_experts() -> None:
    """Two attention ranks with a user each, steps of 1 s whatever is in them, 101 output tokens.

    With experts the ranks step together: who sends his next request finds the other's step in progress but while that
    computes its prompt, 100 s of each 100 s and TTFT, and waits for half of it: TTFT = 1 + 0.5*100/(100 + TTFT). Ranks
    without common experts are engines of their own.
    """
    ttft = 1.0
    for _ in range(20):
        ttft = 1 + 0.5 * 100 / (100 + ttft)
    apart = plain(parallel=Parallelism(dp=2))
    moe = {"kind": "moe", "experts": 2, "top_k": 1, "d_ff": 8}
    for ffn, ep, expected in (({"kind": "mlp", "d_ff": 8}, 1, 1.0), (moe, 2, ttft)):
        model = dense(layers=1, d_model=8, heads=1, d_ff=8, vocab=8, ffn=ffn)
        served = replace(apart, model=model, parallel=Parallelism(dp=2, ep=ep))
        closed = steady_state(served, UserLoad(concurrency=2.0, prompt=10.0, output=101.0))
        assert float(closed.tpot) == pytest.approx(HOST, rel=1e-5)
        assert float(closed.ttft) == pytest.approx(expected, rel=1e-4), ffn


def test_a_full_budget_of_every_step_says_how_long_prompts_wait() -> None:
    """40 users of 40 + 401 tokens, 20 tokens a step: a request is 440 tokens, and every step is full and takes 3 s. So
    a user's turn is 40*440/20*3 = 2,640 s, of which 400*3 decode: 1,440 s until the first token."""
    closed = steady_state(plain(budget=20), UserLoad(concurrency=40.0, prompt=40.0, output=401.0))
    assert float(closed.tpot) == pytest.approx(3.0, rel=1e-3)
    assert float(closed.ttft) == pytest.approx(2640 - 1200, rel=0.02)
