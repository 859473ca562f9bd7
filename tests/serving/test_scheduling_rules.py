"""What schedulers do, step by step: every time is counted by hand (a step is 1 s and 0.1 s a token)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inferplan.devices.hardware import Link
from inferplan.serving.admission import Admitted, Progress
from inferplan.serving.flags import Flags, rules_of
from inferplan.serving.fleet import Fleet
from inferplan.serving.options import Options
from inferplan.serving.records import Records
from inferplan.serving.simulator import simulate
from inferplan.serving.techniques.offload import HostTier
from inferplan.traffic.requests import ClosedLoop, Slo
from inferplan.work.parallel import Parallelism
from tests.cases import for_each
from tests.serving.plain_time import CLOSE, plain, requests, seconds, served


def near(*values: float) -> object:
    return pytest.approx(list(values), rel=CLOSE)


def test_a_request_alone() -> None:
    """A prompt of 50 in one step gives the first token; three more steps of one token each the other three."""
    first, last = served(plain(), requests((0.0, 50, 4)))
    assert first == near(6.0)
    assert last == near(6.0 + 3 * 1.1)


def test_a_prompt_is_cut_to_the_budget_beside_the_decodes() -> None:
    """Budget 20, B arrives after A's prompt step of 10: chunks of 19 beside A's decode, and 2 at last."""
    first, last = served(plain(budget=20), requests((0.0, 10, 5), (0.5, 40, 2)))
    assert first == near(2.0, 2.0 + 3.0 + 3.0 + seconds(3))  # 19 + 1, 19 + 1, 2 + 1 tokens
    assert last == near(9.3 + 1.2, 9.3 + 1.2)


def test_prompts_first_and_alone() -> None:
    """SGLang: B's prompt of 40 holds A's decodes up for 5 s, then both decode together."""
    first, last = served(plain(policy="sglang"), requests((0.0, 10, 3), (0.5, 40, 3)))
    assert first == near(2.0, 7.0)
    assert last == near(7.0 + 2 * 1.2, 7.0 + 2 * 1.2)


def test_a_preempted_request_computes_prompt_and_written_tokens_again() -> None:
    """Room for 100 tokens: two prompts of 40 grow together for ten steps, then B loses its 50 and goes back.

    A goes on alone for its last 20 tokens. B has shown 11 tokens, of which 10 were cached: it computes 40 + 11 again,
    which gives its 12th, and 19 more follow.
    """
    first, last = served(plain(capacity=100), requests((0.0, 40, 31), (0.0, 40, 31)))
    a = seconds(80) + 10 * seconds(2) + 20 * seconds(1)
    b = a + seconds(51) + 19 * seconds(1)
    assert first == near(9.0, 9.0)
    assert (a, b) == (pytest.approx(43.0), pytest.approx(70.0))
    assert last == near(a, b)


def test_a_preempted_request_comes_before_those_that_wait() -> None:
    """Room for 100: C (10 tokens) has waited since 0.5 s, but B, sent back, has the head of the queue and blocks it.

    B's 51 tokens fit when A (61 + 40 at its end, 100 of them cached) is done at 43 s, and C's 10 beside them.
    """
    first, _ = served(plain(capacity=100, slots=2), requests((0.0, 40, 31), (0.0, 40, 31), (0.5, 10, 1)))
    assert first[2] == pytest.approx(43.0 + seconds(61), rel=CLOSE)


def test_reserving_the_whole_never_preempts() -> None:
    """TensorRT-LLM's guaranteed admission: B waits until A has left."""
    deployment = plain(capacity=100, policy="trtllm", admission="reserve")
    first, last = served(deployment, requests((0.0, 40, 31), (0.0, 40, 31)))
    alone = seconds(40) + 30 * seconds(1)
    assert first == near(5.0, alone + 5.0)
    assert last == near(alone, 2 * alone)


@for_each(
    ("serving", "steps"),
    [({}, 0), ({"overlapped": True}, 0), ({"overlapped": True, "seen_late": True}, 1), ({"seen_late": True}, 0)],
)
def test_tokens_are_seen_with_their_step_or_the_next_one(serving: dict[str, bool], steps: int) -> None:
    """Ten prompt tokens, three of output: 2 s and 1.1 s a token; seen late, the last one too."""
    first, last = served(plain(serving=serving), requests((0.0, 10, 3)))
    assert (first, last) == (near(2.0 + 1.1 * steps), near(2.0 + 2 * 1.1 + 1.1 * steps))


def test_an_overlapped_scheduler_sees_arrivals_a_step_late() -> None:
    """B comes at 0.5 s, while A's prompt runs: the step at 2 s is composed already, that at 3.1 s has B's 10 tokens.

    Its first token is made at 5.2 s, and where tokens are seen late when the next step (two decodes) is over.
    """
    sent = requests((0.0, 10, 20), (0.5, 10, 20))
    assert served(plain(serving={"overlapped": True}), sent)[0] == near(2.0, 3.1 + seconds(11))
    first, _ = served(plain(serving={"overlapped": True, "seen_late": True}), sent)
    assert first == near(3.1, 3.1 + seconds(11) + seconds(2))


def test_a_static_batch_keeps_its_places_until_its_last_request_is_done() -> None:
    """A and B decode in two places, the last two steps for B alone; C comes at 0.5 s and waits for both."""
    first, last = served(plain(policy="static"), requests((0.0, 10, 3), (0.0, 10, 5), (0.5, 10, 1)))
    assert last[:2] == near(3.0 + 2 * 1.2, 3.0 + 4 * 1.2)
    assert first[2] == pytest.approx(3.0 + 4 * 1.2 + 2.0, rel=CLOSE)


def test_prompts_are_held_back_to_fill_a_step() -> None:
    """B's 10 tokens do not fill half a budget of 100: they wait three decode steps of A. With 60 they would not."""
    deployment, flags = plain(policy="trtllm", budget=100), Flags(batch_wait_steps=3, batch_wait_fill=0.5)
    for prompt, held in ((10, 3), (60, 0)):
        run = simulate(deployment, requests((0.0, 10, 20), (0.5, prompt, 1)), flags)
        assert run.records.first[1] == pytest.approx(2.0 + held * 1.1 + seconds(prompt + 1), rel=CLOSE)


def test_figures_of_a_run() -> None:
    """Two requests on one slot: 6 s and 3 tokens at 1.1 s; then from 9.3 s on 2 s for the second's only token."""
    run = simulate(plain(slots=1), requests((0.0, 50, 4), (1.0, 10, 1)), options=Options(slo=Slo(ttft=8.0)))
    assert list(run.ttft) == near(6.0, 9.3 + 2.0 - 1.0)
    assert list(run.tpot) == near(1.1)
    assert list(run.e2el) == near(9.3, 10.3)
    assert list(run.wait) == [0.0, pytest.approx(8.3, rel=CLOSE)]
    assert run.duration == pytest.approx(11.3, rel=CLOSE)
    assert run.output_rate == pytest.approx(5 / 11.3, rel=CLOSE)
    assert run.request_rate == pytest.approx(2 / 11.3, rel=CLOSE)
    assert run.goodput == pytest.approx(1 / 11.3, rel=CLOSE)
    assert run.in_system == pytest.approx((9.3 + 10.3) / 11.3, rel=CLOSE)  # Little's law


def test_the_share_that_sglang_holds_back_falls_with_the_steps() -> None:
    """A holds 100 tokens and may write 600 more, of which a falling share is kept free; B needs 200 + 11 of 720.

    0.7 - 0.602 k/600 of what A may still write after k steps (SGLang: 0.7, falling to 0.14 of it over 600 steps) leaves
    B room when 720 - (100 + k) - 1 - 11 - 200 >= share*(600 - k): first at k = 48. The queue is looked at again within
    32 steps; with a share that stays at 0.7 there is no room before A is done.
    """

    def room(k: int) -> bool:
        return 720 - (100 + k) - 1 - 11 - 200 >= (0.7 - (0.7 - 0.098) * k / 600) * (600 - k)

    assert not room(47) and room(48)
    deployment = plain(capacity=720, policy="sglang", admission="ratio")
    first, last = served(deployment, requests((0.0, 100, 601), (0.5, 200, 11)))
    soonest = seconds(100) + 48 * seconds(1) + seconds(200)
    assert soonest * (1 - CLOSE) <= first[1] <= (soonest + 32 * seconds(1)) * (1 + CLOSE)
    assert last[0] > first[1]


def test_sglang_counts_a_long_output_up_to_its_bound() -> None:
    """A holds 100 of 5,000 tokens and may write 100 more, 0.7 of which are kept; B writes 10,000, of which SGLang
    counts 4,096 (``CLIP_MAX_NEW_TOKENS``): a prompt of 5,000 - 100 - 70 - 4,096 = 734 has room, one of 735 has none.
    """
    deployment = plain(capacity=5000, policy="sglang", admission="ratio")
    rules = replace(rules_of(deployment, Flags(), 100.0, 200.0), capacity=5000.0)
    for prompt, found in ((734, 0), (735, "cache")):
        records = Records(arrival=[0.0, 0.0], prompt=[100, prompt], output=[100, 10_000])
        admitted = Admitted(rules, records, Progress(records), None)
        assert admitted.admit(0, 4096, True, lambda: 0.0, 0) == 0
        assert admitted.admit(1, 4096, False, lambda: 0.0, 0) == found, prompt


def test_the_front_end_takes_requests_one_after_another() -> None:
    """0.2 s and 0.01 s a token each, then 0.5 s of latency: A's 100 tokens are seen at 1.7 s, B's 50 at 2.4 s."""
    front = {"latency": "500 ms", "front_request": "200 ms", "front_token": "10 ms"}
    first, _ = served(plain(serving=front), requests((0.0, 100, 1), (0.0, 50, 1)))
    assert first == near(1.7 + seconds(100), 1.7 + seconds(100) + seconds(50))


def test_launching_kernels_one_by_one_sets_a_floor() -> None:
    """A tenth of a second for each of 65 layers are 6.5 s, beside a step of 6.5 s: (6.5^4 + 6.5^4)^(1/4).

    Only steps with a prompt launch so, and only those of more than ``graph_tokens``.
    """
    eager = {"eager_layer": "100 ms", "graph_tokens": 54}
    first, last = served(plain(serving=eager), requests((0.0, 55, 3)))
    assert first == near(6.5 * 2**0.25)
    assert last == near(6.5 * 2**0.25 + 2 * 1.1)
    assert served(plain(serving=eager), requests((0.0, 54, 1)))[0] == near(seconds(54))


def test_slots_are_a_limit() -> None:
    """Two requests of 10 and 3 tokens: one after another, or both in each step."""
    sent = requests((0.0, 10, 3), (0.0, 10, 3))
    assert served(plain(slots=1), sent)[1] == near(4.2, 8.4)
    assert served(plain(slots=1, parallel=Parallelism(pp=2)), sent)[1] == near(4.2, 8.4)
    assert served(plain(slots=2), sent)[1] == near(3.0 + 2 * 1.2, 3.0 + 2 * 1.2)


def test_without_chunked_prefill_a_prompt_waits_for_a_step_that_holds_it() -> None:
    """Budget 20 and A decoding: B's 20 tokens fit no step before A is done; its 19 would."""
    deployment = plain(budget=20, policy="trtllm", admission="reserve", chunked_prefill=False)
    first, _ = served(deployment, requests((0.0, 10, 5), (0.5, 20, 1)))
    assert first == near(2.0, 2.0 + 4 * 1.1 + seconds(20))
    first, _ = served(deployment, requests((0.0, 10, 5), (0.5, 19, 1)))
    assert first == near(2.0, 2.0 + seconds(20))


def test_the_queue_is_looked_at_every_so_many_steps() -> None:
    """With looks five decode steps apart, B (sent in A's first decode step) starts after the fifth."""
    deployment = plain()
    sent = requests((0.0, 10, 20), (2.5, 10, 1))
    assert served(deployment, sent)[0][1] == pytest.approx(2.0 + 1.1 + seconds(11), rel=CLOSE)
    polled = simulate(deployment, sent, Flags(poll_interval_steps=5))
    assert polled.records.first[1] == pytest.approx(2.0 + 5 * 1.1 + seconds(11), rel=CLOSE)
    # D is done after two steps; that is no look at the queue
    polled = simulate(deployment, requests((0.0, 10, 20), (0.0, 10, 3), (3.5, 10, 1)), Flags(poll_interval_steps=5))
    assert polled.records.first[2] == pytest.approx(3.0 + 2 * 1.2 + 3 * 1.1 + seconds(11), rel=CLOSE)


def test_a_client_that_gives_up_is_dropped_before_its_prompt_runs() -> None:
    """One slot, patience of 3.9 s: A ends late at 4.2 s, B has given up by then, and C (sent at 3 s) runs at once."""
    run = simulate(plain(slots=1), requests((0.0, 10, 3), (0.0, 10, 3), (3.0, 10, 1)), Flags(client_timeout=3.9))
    assert run.counts["timed_out"] == 2
    assert run.records.first[2] == pytest.approx(4.2 + 2.0, rel=CLOSE)


def test_a_lane_has_the_budget_for_itself() -> None:
    """Two stages, budget 20: A's prompt is in flight when B's 20 tokens go into a batch of their own, whole.

    A passes the host in 1 s, then the stages, of which the first has 65 of the 129 matrices. The host has B from 1 to
    2 s; the worker of the first stage is done with A 65/129 s after 1 s and prepares B for 1 s; then 2 s of kernels.
    """
    run = simulate(plain(budget=20, parallel=Parallelism(pp=2)), requests((0.0, 10, 5), (0.5, 20, 1)))
    assert list(run.records.first) == near(2.0, 1 + 65 / 129 + 1 + 2)
    assert sum(meter.prompt_steps for meter in run.meters) == 2


# The prefix cache -----------------------------------------------------------------------------------------------------

SAME = ((1, 2), (1, 2), (1, 2), (1, 2))


def test_blocks_found_are_not_computed() -> None:
    """33 tokens in blocks of 16: the second request finds two blocks and computes the last token alone."""
    sent = requests((0.0, 33, 1), (10.0, 33, 1), hashes=SAME[:2], hash_block=16)
    first, _ = served(plain(prefix_caching=True), sent)
    assert first == near(seconds(33), 10.0 + seconds(1))


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    """32 tokens are two whole blocks, of which the second cannot be taken whole: 16 are computed again."""
    sent = requests((0.0, 32, 1), (10.0, 32, 1), hashes=SAME[:2], hash_block=16)
    assert served(plain(prefix_caching=True), sent)[0] == near(seconds(32), 10.0 + seconds(16))


def test_hits_of_the_warm_up_are_not_counted() -> None:
    """One user, four times the same 32 tokens: 16 found in each but the first. Of the last two, half of each."""
    sent = requests((0.0, 32, 1), (0.0, 32, 1), (0.0, 32, 1), (0.0, 32, 1), hashes=SAME, hash_block=16)
    loop = ClosedLoop(concurrency=1)
    run = simulate(plain(prefix_caching=True), sent.in_loop(loop), options=Options(warmup=2))
    assert run.hit_rate == 0.5
    assert simulate(plain(prefix_caching=True), sent.in_loop(loop)).hit_rate == 3 * 16 / (4 * 32)


def test_the_least_recently_used_blocks_are_dropped() -> None:
    """Room for 70 tokens: A's and B's two blocks stay, C drops A's (the older), so B is found again and A is not."""
    names = ((1, 2), (3, 4), (5, 6), (3, 4), (1, 2))
    rows = [(10.0 * turn, 33, 1) for turn in range(5)]
    first, _ = served(plain(capacity=70, prefix_caching=True), requests(*rows, hashes=names, hash_block=16))
    waits = [time - row[0] for time, row in zip(first, rows)]
    assert waits[:4] == near(seconds(33), seconds(33), seconds(33), seconds(1))
    assert waits[4] > seconds(2)


def test_blocks_from_the_host_take_the_time_of_their_bytes() -> None:
    """Room for 40 tokens: B drives A's two blocks out to the host. Back at 32 B/s, 32 tokens of 4 B take 4 s."""
    names = ((1, 2), (3, 4), (1, 2))
    sent = requests((0.0, 33, 1), (10.0, 33, 1), (20.0, 33, 1), hashes=names, hash_block=16)
    deployment = plain(capacity=40, prefix_caching=True)
    host = HostTier(capacity=1e6, bandwidth=32.0)
    kept, _ = served(deployment, sent, host=host)
    assert kept == near(seconds(33), 10.0 + seconds(33), 20.0 + seconds(1) + 32 * 4 / 32)
    lost, _ = served(deployment, sent)
    assert lost[2] == pytest.approx(20.0 + seconds(33), rel=CLOSE)


def test_two_loads_from_the_host_are_paid_once_each() -> None:
    """A comes back from the host after B, and B after A: 4 s for each, and none for the fresh prompt that follows."""
    names = ((1, 2), (3, 4), (1, 2), (3, 4), (5, 6))
    rows = [(10.0 * turn, 33, 1) for turn in range(5)]
    sent = requests(*rows, hashes=names, hash_block=16)
    host = HostTier(capacity=1e6, bandwidth=32.0)
    first, _ = served(plain(capacity=40, prefix_caching=True), sent, host=host)
    loaded = seconds(1) + 4.0
    assert [time - row[0] for time, row in zip(first, rows)] == near(4.3, 4.3, loaded, loaded, 4.3)


def test_a_turn_finds_the_answer_before_it() -> None:
    """20 tokens and an answer of 13, of which 32 are computed: two blocks of 16, the second half written. Of the next
    turn's 40 tokens 8 are left to compute.
    """
    sent = requests((0.0, 20, 13), (100.0, 40, 1), hashes=((1, 2), (1, 2)), hash_block=16)
    first, _ = served(plain(prefix_caching=True), sent)
    assert first[1] == pytest.approx(100.0 + seconds(8), rel=CLOSE)


def test_a_preempted_request_finds_what_is_left_of_it() -> None:
    """Room for 100: both hold 50 at 21 s, B is sent back; A takes 20 of B's 50 blocks, the last ones, until 43 s. Of
    its 51 tokens B computes 21, which makes the twelfth of 31, and 19 more follow.
    """
    _, last = served(plain(capacity=100, prefix_caching=True), requests((0.0, 40, 31), (0.0, 40, 31)))
    assert last == near(43.0, 43.0 + seconds(21) + 19 * 1.1)


# Conversations --------------------------------------------------------------------------------------------------------


def test_a_turn_follows_the_answer_after_a_think_time() -> None:
    """The answer is there at 2 + 2 * 1.1 = 4.2 s; 5 s later the next turn is sent."""
    follows, think = np.array([-1, 0]), np.array([0.0, 5.0])
    sent = requests((0.0, 10, 3), (np.nan, 10, 1), follows=follows, think=think)
    run = simulate(plain(), sent)
    assert list(run.records.arrival) == near(0.0, 9.2)
    assert list(run.records.first) == near(2.0, 9.2 + seconds(10))


def test_turns_stick_to_their_replica() -> None:
    """B's answer is there before A's, so in turn B's next request would go to A's replica, and A's to B's."""
    names = ((1, 2), (3, 4), (1, 2), (3, 4))
    rows = ((0.0, 33, 30), (0.0, 33, 2), (np.nan, 70, 1), (np.nan, 50, 1))
    sent = requests(*rows, hashes=names, hash_block=16, follows=np.array([-1, -1, 0, 1]))
    deployment = plain(parallel=Parallelism(replicas=2), prefix_caching=True)
    found = {
        routing: dict(simulate(deployment, sent, options=Options(fleet=Fleet(routing=routing))).records.cached)
        for routing in ("sticky", "prefix-aware", "round-robin")
    }
    assert found == {"sticky": {2: 32, 3: 32}, "prefix-aware": {2: 32, 3: 32}, "round-robin": {}}


# Several engines ------------------------------------------------------------------------------------------------------


def test_replicas_take_turns() -> None:
    """Two replicas, three requests at once: the third is the first replica's second."""
    first, _ = served(plain(parallel=Parallelism(replicas=2)), requests((0.0, 10, 1), (0.0, 20, 1), (0.0, 30, 1)))
    assert first == near(seconds(40), seconds(20), seconds(40))


def test_the_least_loaded_replica_takes_the_next() -> None:
    """B's replica is free again when C comes; in turn it would have been A's."""
    sent = requests((0.0, 10, 30), (0.0, 10, 1), (5.0, 10, 1))
    deployment = plain(parallel=Parallelism(replicas=2))
    assert served(deployment, sent, fleet=Fleet(routing="least-loaded"))[0][2] == pytest.approx(7.0, rel=CLOSE)
    assert served(deployment, sent)[0][2] > 7.05


def test_pools_apart_send_the_cache_over_their_link() -> None:
    """A's prompt of 50 is done at 6 s, its 200 bytes take 2 s at 100 B/s, then three decodes of 1.1 s."""
    deployment = plain()
    slow = deployment.hardware.model_copy(update={"links": [Link(name="slow", bandwidth="100 B/s")]})
    apart = replace(deployment, hardware=slow)
    first, last = served(apart, requests((0.0, 50, 4)), fleet=Fleet(prefill=1, decode=1))
    assert first == near(6.0)
    assert last == near(6.0 + 2.0 + 3 * 1.1)
