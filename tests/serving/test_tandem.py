"""Models one after another: by hand, against queues with a closed form, and against the models alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.devices.engine import EngineFlags
from inferplan.errors import UsageError
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.serving.tandem import Asked, answers, simulate_stage, simulate_tandem
from inferplan.traffic.requests import Lengths, Requests, Slo
from inferplan.traffic.stages import Draw, ModelStage, draws, rate_of_stage, reach, require_tree, scale_rates
from tests.cases import for_each

PROMPT, OUTPUT = Lengths(mean=256), Lengths(mean=32)
ONE = EngineFlags(max_sequences=1)
"""One request at a time: a single server."""
SMALL = assemble(Request(model="llama-3.2-1b", gpu="h100-sxm", ideal=True, flags=ONE))
LARGE = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", ideal=True, flags=ONE))


def service(deployment, prompt: int = 256, output: int = 32) -> float:
    """Seconds of a request alone."""
    one = Requests(prompt=np.array([prompt]), output=np.array([output]), arrival=np.zeros(1))
    return float(simulate(deployment, one).e2el[0])


def pair(share: float, rate: float, **limits: float) -> list[ModelStage]:
    first = ModelStage(name="small", rate=rate, prompt=PROMPT, output=OUTPUT, answer=Slo(percentile=95, **limits))
    return [first, ModelStage(name="large", after=0, share=share, output=OUTPUT)]


def lindley(arrival: np.ndarray, seconds: float) -> np.ndarray:
    """When a single server finishes requests of equal length: ``max(arrival, last finish) + seconds``."""
    finish, last = np.empty(len(arrival)), 0.0
    for place, time in enumerate(arrival):
        last = finish[place] = max(time, last) + seconds
    return finish


@for_each("first, second", [(SMALL, LARGE), (LARGE, SMALL)])
def test_a_tandem_of_single_servers_is_the_recursion_of_lindley(first, second) -> None:
    """Everybody goes on: the departures of the first are the arrivals at the second, to the last digit."""
    seconds = service(first), service(second)
    stages = pair(1.0, 0.7 / max(seconds))
    run = simulate_tandem(stages, [first, second], [3000, 3000])
    arrival = draws(stages, [3000, 3000])[0].arrival
    middle = lindley(arrival, seconds[0])
    assert run.asked[0].finish == pytest.approx(middle, rel=1e-9)
    assert run.asked[1].finish == pytest.approx(lindley(middle, seconds[1]), rel=1e-9)


def test_behind_a_slower_single_server_nobody_waits() -> None:
    """Departures are a service of the first apart, which is longer than one of the second."""
    seconds = service(LARGE), service(SMALL)
    run = simulate_tandem(pair(1.0, 0.8 / seconds[0]), [LARGE, SMALL], [2000, 2000])
    assert run.asked[1].finish - run.asked[0].finish == pytest.approx(np.full(2000, seconds[1]), rel=1e-9)


def test_the_first_waits_as_the_formula_of_pollaczek_and_khinchine_says() -> None:
    """M/D/1: ``W = rho S/(2 (1 - rho))``; at 0.5 half a service, within 5 % of 40,000 requests."""
    seconds = service(SMALL)
    run = simulate_tandem(pair(0.0, 0.5 / seconds), [SMALL, LARGE], [40_000, 40_000])
    assert run.asked[0].run is not None
    assert float(np.mean(run.asked[0].run.e2el)) / seconds == pytest.approx(1.5, rel=0.05)


def test_with_a_share_of_none_a_cascade_is_its_first_model() -> None:
    alone = ModelStage(name="small", rate=20.0, prompt=PROMPT, output=OUTPUT, answer=Slo(e2el=1.0, percentile=95))
    counts = [1200, 1200]
    run, single = (
        simulate_tandem(pair(0.0, 20.0, e2el=1.0), [SMALL, LARGE], counts),
        simulate_tandem([alone], [SMALL], [1200]),
    )
    assert run.asked[1].run is None
    assert np.array_equal(run.answers[0].e2el, single.answers[0].e2el)
    assert np.array_equal(run.answers[0].ttft, single.answers[0].ttft)  # nobody judges an answer that never goes on
    known = simulate(SMALL, Requests(**arrays(draws([alone], [1200])[0])), options=Options(trim=True))
    assert run.asked[0].run is not None
    assert np.array_equal(run.asked[0].run.e2el, known.e2el)


def arrays(draw: Draw) -> dict[str, np.ndarray]:
    return {"prompt": draw.prompt, "output": draw.output, "arrival": draw.arrival}


def test_those_that_go_on_take_both_times_and_the_rest_one() -> None:
    """Nobody waits at a tenth of the load. With services a and b the mean is ``a + p b`` for the share that went on."""
    seconds = service(SMALL), service(LARGE)
    stages = pair(0.25, 0.002 / seconds[1])
    run = simulate_tandem(stages, [SMALL, LARGE], [4000, 4000])
    went = draws(stages, [4000, 4000])[1].asked
    assert float(np.mean(went)) == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / 4000) ** 0.5)
    seen = run.answers[0]
    both = np.isclose(seen.e2el, sum(seconds), rtol=1e-6)
    assert np.all(both | np.isclose(seen.e2el, seconds[0], rtol=1e-6) | (seen.e2el > seconds[0] * 1.001))
    middle = slice(1000, 1000 + len(seen.e2el))
    expected = seconds[0] + float(np.mean(went[middle])) * seconds[1]
    assert float(np.mean(seen.e2el)) == pytest.approx(expected, rel=0.01)


def test_what_users_see_by_hand() -> None:
    """Ten requests, one a second. The first model answers in 1 s, first token after 0.2 s; the second, which the last
    eight never reach but the fourth, in 3 s, first token after 0.5 s. Who stays sees an answer once it is whole and
    judged; who goes on sees the first token of the second. The first two of ten and the last are in no figure.
    """
    stages = pair(0.5, 1.0)
    arrival = np.arange(10.0)
    goes = arrival == 4
    drawn = [
        Draw(asked=np.ones(10, dtype=bool), prompt=np.ones(10, int), output=np.ones(10, int), arrival=arrival),
        Draw(asked=goes, prompt=np.ones(10, int), output=np.ones(10, int), arrival=arrival),
    ]
    second = np.where(goes, arrival + 1.0, np.nan)
    asked = [
        Asked(run=None, finish=arrival + 1.0, first=arrival + 0.2),
        Asked(run=None, finish=second + 3.0, first=second + 0.5),
    ]
    seen = answers(stages, drawn, asked, 0)
    assert seen.e2el.tolist() == [1.0, 1.0, 4.0, 1.0, 1.0, 1.0]  # requests 2 to 7: 10 - 2 - those after 9 - 1.375
    assert seen.ttft.tolist() == [1.0, 1.0, 1.5, 1.0, 1.0, 1.0]
    assert seen.window == pytest.approx(6.0)
    alone = answers(stages[:1], drawn[:1], asked[:1], 0)
    assert alone.ttft.tolist() == pytest.approx([0.2] * len(alone.ttft))  # tokens are shown as they come


def test_goodput_and_percentiles_of_answers_by_hand() -> None:
    """One of four is over its limit: 3 good ones in 4 seconds; the largest of them is the 95th percentile's limit."""
    seen = replace(_seen([1.0, 2.0, 3.0, 9.0]), slo=Slo(e2el=3.0, percentile=75))
    assert (seen.attained, seen.goodput) == (0.75, 0.75)
    assert seen.at("e2el", 50) == 2.5
    assert not seen.keeps  # linear between 3 and 9
    lost = _seen([1.0, 2.0, np.inf, 3.0])
    assert lost.at("e2el", 50) == 2.5  # between its neighbours, of which none is lost
    assert lost.at("e2el", 75) == np.inf  # of which one is
    assert lost.at("e2el", 99) == np.inf
    assert replace(lost, steady=False).at("e2el", 1) == np.inf


def _seen(times: list[float]):
    from inferplan.serving.tandem import Answers

    return Answers(
        ttft=np.array(times), e2el=np.array(times), window=4.0, steady=True, slo=Slo(e2el=3.0, percentile=95)
    )


def test_a_router_sends_each_request_to_one_model() -> None:
    """Shares of 0.7 and 0.3 behind one model: nobody is asked twice, nobody is left out."""
    first = ModelStage(name="router", rate=5.0, prompt=PROMPT, output=Lengths(mean=1))
    both = [first, *(ModelStage(name=str(p), after=0, share=p, output=OUTPUT) for p in (0.7, 0.3))]
    router, often, seldom = draws(both, [20_000] * 3, seed=4)
    assert np.array_equal(often.asked ^ seldom.asked, router.asked)
    assert float(np.mean(often.asked)) == pytest.approx(0.7, abs=0.013)  # four standard errors
    assert np.array_equal(often.prompt, router.prompt)
    assert reach(both) == [1.0, 0.7, 0.3]
    assert rate_of_stage(both, 2) == pytest.approx(1.5)
    deep = [*both, ModelStage(name="last", after=1, share=0.5, output=OUTPUT, prompt=Lengths(mean=900))]
    drawn = draws(deep, [20_000] * 4, seed=4)
    assert not np.any(drawn[3].asked & ~drawn[1].asked)
    assert float(np.mean(drawn[3].asked)) == pytest.approx(0.35, abs=0.014)
    assert set(drawn[3].prompt) == {900}
    assert rate_of_stage(scale_rates(deep, 2.0), 3) == pytest.approx(3.5)


def test_what_is_refused_is_lost_further_on() -> None:
    """A prompt that the first model can never hold does not reach the second, and its user never has an answer."""
    stages = pair(1.0, 1.0)
    drawn = draws(stages, [200, 200])
    prompt = drawn[0].prompt.copy()
    prompt[120] = 5_000_000
    first = simulate_stage(SMALL, replace(drawn[0], prompt=prompt), Slo())
    second = simulate_stage(LARGE, drawn[1], Slo(), first)
    assert second.run is not None
    assert len(second.run.records.prompt) == 199
    seen = answers(stages, drawn, [first, second], 0)
    assert int(np.sum(np.isinf(seen.e2el))) == 1
    assert int(np.sum(np.isinf(seen.ttft))) == 1
    assert not seen.steady or seen.at("e2el", 99.9) == np.inf


@for_each(
    ("change", "says"),
    [
        ({"rate": 3.0}, "either a rate or a model"),
        ({"after": 1}, "comes later"),
        ({"share": -0.1}, r"a share is in \[0, 1\]"),
        ({"name": "small"}, "two models are named"),
        ({"answer": Slo(tpot=1.0)}, "no time per output token"),
    ],
)
def test_what_is_no_tree_is_refused(change: dict, says: str) -> None:
    first, second = pair(0.5, 1.0)
    with pytest.raises(UsageError, match=says):
        require_tree([first, replace(second, **change)])


def test_shares_of_one_model_are_at_most_a_whole() -> None:
    first, second = pair(0.6, 1.0)
    require_tree([first, second, replace(second, name="third", share=0.4)])
    with pytest.raises(UsageError, match=r"1\.1 of the answers of small go on"):
        require_tree([first, second, replace(second, name="third", share=0.5)])
    with pytest.raises(UsageError, match="have no length"):
        require_tree([replace(first, prompt=None)])
