"""Images in a day: each request's own work, served by replicas that come and go, replayed by hand."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import UsageError
from inferplan.estimate.phase import media_seconds
from inferplan.models.media import MediaAsked
from inferplan.planning.day import DayAsked, day_requests, simulate_day
from inferplan.planning.demand import Demand
from inferplan.planning.question import Question
from inferplan.serving.autoscaling import Schedule
from inferplan.serving.cold_start import ColdStart
from inferplan.serving.flags import Flags
from inferplan.serving.fleet import Fleet
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.traffic.conversations import Ints
from inferplan.traffic.requests import Lengths, Media, Requests, SharedPrefix, parse_lengths
from inferplan.units import Array
from tests.cases import for_each
from tests.planning.test_day import PEAKS, question

REQUEST = Request(
    model="qwen2.5-vl-3b", gpu="h100-sxm", ideal=True, media=MediaAsked(images=1, image_size=(640, 480), text=200.0)
)
TOKENS = 391
"""Of an image of 640 x 480: 23 x 17 squares of 28 pixels (docs/media.md: nearest multiples of patch times merge)."""
ONE_AT_A_TIME = Flags(max_num_seqs=1)


def carrying(times: Array, sets: Ints, with_media: bool = True) -> Requests:
    """Requests of 200 tokens of text and so many images each."""
    tokens = 200 + sets * TOKENS
    return Requests(prompt=tokens, output=np.full(len(sets), 40), arrival=times, media=sets if with_media else None)


def replayed(times: Array, service: Array, there: list[tuple[float, float]]) -> Array:
    """When each request ends, of servers that each do one at a time: it goes to the one with the fewest, of those that
    take requests; of equals to the first. there: from when until when each takes them."""
    ends: list[list[float]] = [[] for _ in there]
    finish = []
    for time, takes in zip(times.tolist(), service.tolist()):
        taking = [place for place, (ready, left) in enumerate(there) if ready <= time < left]
        _, place = min((sum(end > time for end in ends[place]), place) for place in taking)
        begin = max([time, *ends[place][-1:]])
        ends[place].append(begin + takes)
        finish.append(begin + takes)
    return np.array(finish)


def test_images_on_replicas_that_come_and_go_by_hand() -> None:
    """300 requests of 1 to 4 images, at 1.6 times what one replica serves, on 1, 3, 1 and 2 of them.

    A request alone takes what one of text with as many tokens takes, and the tower: 1 to 4 images. Steps that others'
    arrivals cut are priced at other contexts: some microseconds.
    """
    served = assemble(REQUEST)
    assert served.media is not None and served.media.tokens == TOKENS
    kinds = np.arange(1, 5)
    alone = [
        [
            simulate(served, carrying(np.zeros(1), kinds[[at]], media), ONE_AT_A_TIME).records.finish[0]
            for at in range(4)
        ]
        for media in (True, False)
    ]
    towers = np.array([float(media_seconds(served, float(sets))) for sets in kinds])
    assert np.array(alone[0]) == pytest.approx(np.array(alone[1]) + towers, rel=1e-9)
    rng = np.random.default_rng(3)
    sets = rng.integers(1, 5, 300)
    service = np.array(alone[0])[sets - 1]
    times = np.cumsum(rng.exponential(float(np.mean(service)) / 1.6, 300))
    ups, down, again, cold = (float(times[-1]) * share for share in (0.2, 0.7, 0.8, 0.1))
    scaling = Schedule(changes=((0.0, 1), (ups, 3), (down, 1), (again, 2)), cold_start=cold)
    options = Options(fleet=Fleet(routing="least-loaded", scaling=scaling))
    found = simulate(served, carrying(times, sets), ONE_AT_A_TIME, options)
    there = [(0.0, inf), (ups + cold, down), (ups + cold, down), (again + cold, inf)]
    assert np.asarray(found.records.finish) == pytest.approx(replayed(times, service, there), abs=2e-5)


def asked_of_day(**more: object) -> tuple[Question, DayAsked]:
    """1 to 4 images each, 200 tokens of text."""
    media = Media(tokens=TOKENS, sets=parse_lengths("uniform:4:0.25"))
    text = Lengths(mean=200)
    demand = Demand(prompt=media.beside(text), text=text, media=media, output=Lengths(mean=40), rate=1.0)
    asks = question()
    asks = replace(asks, space=replace(asks.space, base=REQUEST), demand=replace(demand, **more))  # type: ignore[arg-type]
    return asks, DayAsked(profile=PEAKS, span=1800.0, cold_start=ColdStart(rest=60.0))


def test_every_request_of_a_day_has_its_images_and_their_tokens() -> None:
    """As many of each number as of the others, whatever the text; the same requests under every policy."""
    requests = day_requests(*asked_of_day())
    assert requests.media is not None
    assert np.array_equal(requests.prompt, 200 + requests.media * TOKENS)
    shares = np.bincount(requests.media, minlength=5)[1:] / len(requests)
    assert shares == pytest.approx(np.full(4, 0.25), abs=4 * np.sqrt(0.25 * 0.75 / len(requests)))
    asks, asked = asked_of_day()
    day = simulate_day(REQUEST, assemble(REQUEST), asks, asked)
    for one in day.policies:
        records = one.result.records
        assert np.array_equal(np.asarray(records.prompt), requests.prompt)
    static = day.policies[0]
    flags, replicas = day.work.design.flags, Schedule(changes=((0.0, static.peak),))
    plain = simulate(assemble(REQUEST), requests, flags, Options(fleet=Fleet(routing="least-loaded", scaling=replicas)))
    assert np.asarray(static.result.records.finish).tobytes() == np.asarray(plain.records.finish).tobytes()


@for_each("more", [{"prefix": SharedPrefix(tokens=100)}, {"samples": 2}])
def test_text_that_prompts_share_beside_images_is_refused(more: dict[str, object]) -> None:
    with pytest.raises(UsageError) as refused:
        simulate_day(REQUEST, assemble(REQUEST), *asked_of_day(**more))
    assert "images" in str(refused.value)
