"""Scrapes of servers, and of what a Prometheus server kept, of answers that are written down here. Nobody waits."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from inferplan.errors import InputFileError, NetworkError, UsageError
from inferplan.measuring import prometheus_api as kept
from inferplan.measuring import scrapes
from inferplan.measuring.prometheus_api import Kept
from inferplan.measuring.scrapes import Scraped, ScrapesAsked
from inferplan.validation import held_out


def answer(text: str = "metrics", status: int = 200, error: str = "", **more: Any) -> Any:
    return SimpleNamespace(text=text, status=status, error=error, **more)


class Client:
    """Gives the answers of its address one after the other, the last of them for ever."""

    asked: list[str]
    answers: dict[str, list[Any]]

    def __init__(self, address: Any, key: Any, timeout: float) -> None:
        self.address = address

    async def get(self, url: str) -> Any:
        self.asked.append(url)
        left = self.answers[self.address.root]
        return left.pop(0) if len(left) > 1 else left[0]

    def shown(self, text: str) -> str:
        return text.replace("secret", "***")

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which passes in pauses alone."""
    now = [100.0]

    async def sleep(seconds: float) -> None:
        now[0] += seconds

    for module in (scrapes, kept):
        monkeypatch.setattr(module, "Client", Client)
        monkeypatch.setattr(module, "require_answer", lambda client, answer: None)
    monkeypatch.setattr(scrapes, "monotonic", lambda: now[0])
    monkeypatch.setattr(scrapes, "sleep", sleep)
    Client.asked, Client.answers = [], {}
    return now


def scraped(asked: ScrapesAsked, **answers: list[Any]) -> tuple[list[Scraped], list[Any], list[Any]]:
    told: list[Any] = []
    checked: list[Any] = []
    Client.answers = {f"http://{name}": list(found) for name, found in answers.items()}
    servers = [Scraped(address=SimpleNamespace(root=root)) for root in Client.answers]  # type: ignore[arg-type]
    work = scrapes.scrape(
        servers,
        "key",
        asked,
        lambda *words: told.append(words),
        lambda *words: checked.append(words),  # type: ignore[arg-type]
    )
    asyncio.run(work)
    return servers, told, checked


def test_scrapes_at_the_same_times(clock: list[float]) -> None:
    """Every 10 s for 30: at 0, 10, 20 and 30 s. The first text of each server is looked at."""
    (one, other), told, checked = scraped(
        ScrapesAsked(every=10.0, lasting=30.0), a=[answer("1"), answer("2")], b=[answer()]
    )
    assert one.at == other.at == [0.0, 10.0, 20.0, 30.0] and one.texts == ["1", "2", "2", "2"]
    assert told == [("reading /metrics", at, 30) for at in (0, 10, 20, 30)]
    assert checked == [("1", "http://a/metrics"), ("metrics", "http://b/metrics")]
    assert Client.asked[:2] == ["http://a/metrics", "http://b/metrics"] and (one.missed, one.gone) == (0, "")
    (short,), _, _ = scraped(ScrapesAsked(every=10.0, lasting=14.0), a=[answer()])
    (long,), _, _ = scraped(ScrapesAsked(every=10.0, lasting=16.0), a=[answer()])
    assert (short.at, long.at) == ([0.0, 10.0], [0.0, 10.0, 20.0])


def test_servers_that_stop_answering(clock: list[float]) -> None:
    """After three in a row one is gone, and is not asked again; one that comes back is not."""
    down, error = answer("", 503), answer("", 0, "refused")
    (gone, back), _, _ = scraped(
        ScrapesAsked(every=10.0, lasting=60.0), a=[answer(), error],
        b=[answer(), down, down, answer(), down, down, answer()],
    )  # fmt: skip
    assert (gone.missed, gone.at, gone.gone) == (3, [0.0], "it stopped answering after 0 s: refused")
    assert (back.missed, back.at, back.gone) == (4, [0.0, 30.0, 60.0], "")
    assert sum("//a/" in url for url in Client.asked) == 4
    (one,), told, _ = scraped(ScrapesAsked(every=10.0, lasting=60.0), a=[answer(), down])
    assert len(told) == 4 and one.gone == "it stopped answering after 0 s: HTTP 503"


def test_servers_without_metrics(clock: list[float]) -> None:
    for wrong, because in ((answer("", 404), "HTTP 404"), (answer("", 404, "no page"), "no page")):
        with pytest.raises(NetworkError, match="no metrics at http://a/metrics") as refused:
            scraped(ScrapesAsked(every=10.0, lasting=20.0), a=[wrong])
        assert refused.value.because == because


@pytest.mark.parametrize("slept", [20.0, 25.0])
def test_a_machine_that_slept(clock: list[float], monkeypatch: pytest.MonkeyPatch, slept: float) -> None:
    """It reads once, not for all that it missed, and goes on from there."""

    async def sleep(seconds: float) -> None:
        clock[0] += slept if clock[0] == 100.0 else seconds

    monkeypatch.setattr(scrapes, "sleep", sleep)
    (one,), _, _ = scraped(ScrapesAsked(every=10.0, lasting=40.0), a=[answer()])
    assert one.at == [0.0, slept, slept + 10, slept + 20]


def test_more_scrapes_than_are_kept() -> None:
    ScrapesAsked(every=1.0, lasting=2000.0)
    with pytest.raises(UsageError, match="2,001 scrapes are more than are kept") as refused:
        ScrapesAsked(every=1.0, lasting=2001.0)
    assert refused.value.hint == "--every 1.1s, or a shorter time"


# --- of a Prometheus server


def test_parts_of_a_long_time() -> None:
    """In the order of time, the shortest first."""
    asked = Kept(url="http://p:9090/api/v1/query", until=1000.0, lasting=2 * kept._PART + 0.5)
    whole = 2 * kept._PART + 1
    assert asked.parts() == [
        (1000.0 - 2 * kept._PART, 1), (1000.0 - kept._PART, kept._PART), (1000.0, kept._PART)
    ]  # fmt: skip
    assert sum(seconds for _, seconds in asked.parts()) == whole
    named = Kept(url="http://p:9090/api/v1/query", until=0.0, lasting=1.0, labels={"job": 'a"b'})
    assert named.query(60).endswith(',job="a\\"b"}[60s]') and named.query(60).startswith('{__name__=~"(')


def asked_kept(*answers: Any, lasting: float = 1.0, **more: Any) -> tuple[tuple[str, list[str]], list[Any]]:
    Client.answers, told = {"http://p:9090": list(answers)}, list[Any]()
    one = Kept(url="http://p:9090/api/v1/query", until=1000.0, lasting=lasting, **more)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept, "address_of", lambda root: SimpleNamespace(root=root))
        return asyncio.run(kept.ask_kept(one, "key", lambda *words: told.append(words))), told  # type: ignore[arg-type]


def page(result: Any, **more: Any) -> Any:
    return answer(json={"data": {"result": result}} | more)


def test_what_a_prometheus_server_kept(clock: list[float]) -> None:
    """Warnings are said once, without the key."""
    pages = page([1], warnings=["secret one", "two"]), page([2, 3], warnings=["two"]), page([])
    (text, warned), told = asked_kept(*pages, lasting=2 * kept._PART + 1)
    assert (json.loads(text), warned) == ([1, 2, 3], ["*** one", "two"])
    assert told == [("asking Prometheus", number * kept._PART, 3 * kept._PART) for number in range(3)]
    asked = parse_qs(urlsplit(Client.asked[1]).query)
    assert asked["time"] == [f"{1000 - kept._PART:.3f}"] and asked["query"][0].endswith(f"[{kept._PART}s]")
    assert asked_kept(page([1]))[0] == ("[1]", []) and asked_kept(page([1], warnings=None))[0] == ("[1]", [])


def test_what_is_no_prometheus_server(clock: list[float]) -> None:
    odd = ([1], None, {"data": 3}, {"data": {"result": 3}}, {"data": None})
    for said in odd:
        with pytest.raises(NetworkError, match="does not answer as a Prometheus server") as refused:
            asked_kept(answer(json=said))
        assert refused.value.because
    with pytest.raises(NetworkError) as refused:
        asked_kept(answer(error="down", json=None))
    assert refused.value.because == "down"
    with pytest.raises(InputFileError, match="kept no series of an engine") as nothing:
        asked_kept(page([]), labels={"job": "x"}, lasting=0.5)
    assert "none in the last 1 s" in nothing.value.because and nothing.value.because.endswith(', job="x"')


# --- which load is held out


def row(refused: str = "", run: Any = "run", opposed: tuple[str, ...] = ()) -> Any:
    return SimpleNamespace(refused=refused, run=run, opposed=opposed)


def test_rows_that_cannot_be_predicted() -> None:
    assert held_out._unpriced([row(), row(run=None)]) == ""
    assert held_out._unpriced([row(), row(opposed=("tp 2", "x"))]) == "the server says tp 2"
    said = "; the server does not say it, --model, --gpu, --engine, --quant and --tp do"
    assert held_out._unpriced([row("gpu is empty", None)]) == f"gpu is empty{said}"
    assert held_out._unpriced([row("odd", None), row("gpu is empty", None)]) == "odd"


def test_why_no_load_is_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_out.plain, "read", lambda path, text, facts: read)
    monkeypatch.setattr(held_out, "price_rows", lambda rows, pricing: scored)
    monkeypatch.setattr(held_out, "choose", lambda scored: index)
    monkeypatch.setattr(held_out, "hold_out", lambda *words: words[:2])
    read, index = [row("odd", None)], None
    scored: Any = [SimpleNamespace(prediction=1, refused="a"), SimpleNamespace(prediction=None, refused="b")]

    def judged() -> tuple[int, Any, str]:
        found = held_out.judge("w", "", None, {})  # type: ignore[arg-type]
        return len(found.scored), found.held, found.why

    assert judged() == (0, None, "odd")
    read = [row()]
    assert judged() == (2, None, "b")
    scored = scored[:1]
    assert judged() == (1, None, f"it takes more than {held_out.FEWEST} loads that are not suspect")
    index = 0
    assert judged() == (1, (scored, 0), "")

    def refuse(*_: Any) -> Any:
        raise UsageError("what", because="why")

    monkeypatch.setattr(held_out, "hold_out", refuse)
    assert judged() == (1, None, "what: why")


def test_what_an_anchor_makes_worse() -> None:
    """By the distance of logarithms, beyond the noise of the process."""

    def held(
        before: float, after: float, noise: float = 0.01, errors: tuple[float, ...] = (), clip: float = 0.5
    ) -> Any:
        anchor = SimpleNamespace(
            process=SimpleNamespace(kernel=lambda metric: SimpleNamespace(noise=noise), clip=clip),
            measured=lambda metric: ([], errors),
        )
        one = SimpleNamespace(metric="ttft", error_before=before, error=after)
        return SimpleNamespace(figures=[one], fitted=SimpleNamespace(anchor=anchor))

    assert held_out.worse(held(0.1, 0.2)) is not None and held_out.worse(held(0.2, 0.1)) is None
    assert held_out.worse(held(0.1, -0.0999)) is not None and held_out.worse(held(0.0, 0.02, noise=0.05)) is None
    assert held_out.worse(held(0.1, 0.1)) is None
    most = held(0.0, 0.0, errors=(0.6, -0.7, 0.1))
    assert held_out.beyond(most) is not None and held_out.count_clipped(most, "ttft") == 2
    assert held_out.beyond(held(0.0, 0.0, errors=(0.6, 0.1))) is None
    assert held_out.count_clipped(held(0.0, 0.0, errors=(0.5,)), "ttft") == 0
