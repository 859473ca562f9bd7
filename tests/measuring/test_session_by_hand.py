"""A run against a server that is written down here: what is sent, how often, when, and what stops it. Nobody waits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from inferplan.errors import NetworkError, UsageError
from inferplan.measuring import session as sessions
from inferplan.measuring.client import Reply
from inferplan.measuring.dialect import Dialect
from inferplan.measuring.loads import Bounds, Budget, UsersLoad
from inferplan.measuring.planned import PlannedLoad
from inferplan.measuring.server import Occupancy, Server
from inferplan.measuring.session import MeasuredLoad, Session, _Probe, _Request, _Runner

GOOD = Reply(sent=0.0, ended=1.0, times=(0.5, 0.75, 1.0), prompt=100, output=3, finish="length")
BUSY = Reply(sent=0.0, ended=1.0, status=429, failure="status", error="busy")
LOAD = UsersLoad(users=2, prompt=100, output=3, requests=4)


def failed(status: int, failure: Any = "status", error: str = "no", **more: Any) -> Reply:
    return Reply(sent=0.0, ended=1.0, status=status, failure=failure, error=error, **more)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of every pause; none is kept."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(sessions, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": sleep}))
    return found


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def session(**more: Any) -> Session:
    """400 requests, 600 seconds and a million tokens; a warm-up of two requests."""
    settings = SimpleNamespace(
        bounds=more.pop("bounds", Bounds()), warmup=more.pop("warmup", 2), busy=more.pop("busy", False), timeout=9.0,
        api=more.pop("api", None), served_model=None, address=SimpleNamespace(root="http://host"), key="", count=None,
        planned=more.pop("planned", None), choice=SimpleNamespace(loads=lambda: more.get("loads", [])),
    )  # fmt: skip
    loads = more.pop("loads", [])
    settings.choice = SimpleNamespace(loads=lambda: loads)
    return Session(settings=settings, budget=Budget(bounds=settings.bounds), **more)


class Sender:
    """A client that gives these replies, the last of them for ever, and notes what it was asked."""

    def __init__(self, *replies: Reply) -> None:
        self.replies, self.asked = list(replies), list[tuple[str, dict[str, Any], int]]()
        self.address, self.connections = SimpleNamespace(root="http://host"), list[int]()

    async def stream(self, path: str, body: bytes, output: int) -> Reply:
        self.asked.append((path, json.loads(body), output))
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]

    async def open_connections(self, count: int) -> None:
        self.connections.append(count)

    async def __aenter__(self) -> Sender:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


def tried(of: Session, *replies: Reply, tokens: int = 10, probing: bool = False) -> tuple[Reply, int]:
    """The reply that counts, and how often was sent."""
    sender = Sender(*replies)
    found = run(sessions._patiently(of, tokens, lambda: sender.stream("/", b"{}", 1), probing))
    return found, len(sender.asked)


def test_who_is_turned_away_asks_three_times(pauses: list[float]) -> None:
    """Half a second and a second between them, or what the server says; each is paid for."""
    of = session()
    reply, sent = tried(of, BUSY)
    assert (reply.refused, sent, pauses) == (2, 3, [0.5, 1.0])
    assert (of.budget.requests, of.budget.tokens) == (2, 20)
    pauses.clear()
    reply, sent = tried(of, replace(BUSY, wait=7.0), BUSY, GOOD)
    assert (reply.ok, reply.refused, sent, pauses) == (True, 2, 3, [7.0, 1.0])
    assert tried(of, GOOD) == (GOOD, 1)


def test_who_is_not_asked_again(pauses: list[float]) -> None:
    """A pause longer than the run; bounds that are used up; what is no refusal, but for the first of ours."""
    assert tried(session(), replace(BUSY, wait=601.0), GOOD)[1] == 1
    assert tried(session(), replace(BUSY, wait=600.0), GOOD)[1] == 2
    few = session(bounds=Bounds(requests=1, tokens=10))
    assert tried(few, BUSY)[1] == 2 and few.budget.requests == 1
    assert tried(session(bounds=Bounds(tokens=9)), BUSY)[1] == 1
    for reply, again in ((failed(500), 2), (failed(599), 2), (failed(499), 1), (failed(200, "stream"), 2)):
        assert tried(session(), reply, GOOD)[1] == 1
        assert tried(session(), reply, GOOD, probing=True)[1] == again


def test_loads_that_are_hopeless_or_of_no_use() -> None:
    def measured(*replies: Reply, load: Any = LOAD) -> MeasuredLoad:
        return MeasuredLoad(load=load, replies=list(replies))

    assert not measured(BUSY, BUSY).hopeless and measured(BUSY, BUSY, BUSY).hopeless
    assert not measured(BUSY, BUSY, BUSY, GOOD).hopeless
    assert measured(BUSY, BUSY, load=replace(LOAD, requests=2)).hopeless
    assert measured(GOOD, GOOD, BUSY).usable and not measured(GOOD, BUSY).usable
    late, early = replace(GOOD, sent=2.0), replace(GOOD, sent=1.0)
    plan = PlannedLoad(prompts=(9,) * 4, outputs=(1,) * 4, fill=1)
    assert measured(late, BUSY, early, load=plan).judged == [early, late]
    assert measured(late, BUSY).judged == [late] and measured(late, BUSY).failed == [BUSY]


def test_pieces_that_come_together() -> None:
    """Three pieces in two moments; one piece alone and replies too quick to tell are left out."""
    together = replace(GOOD, times=(0.5, 0.5, 1.0))
    quick = replace(GOOD, times=(0.01, 0.02, 0.05))
    assert MeasuredLoad(load=LOAD, replies=[together]).pieces_at_once == 1.5
    assert MeasuredLoad(load=LOAD, replies=[together, GOOD]).pieces_at_once == 6 / 5
    for other in (quick, replace(GOOD, times=(0.5,)), BUSY):
        assert MeasuredLoad(load=LOAD, replies=[together, other]).pieces_at_once == 1.5
        assert MeasuredLoad(load=LOAD, replies=[other]).pieces_at_once == 1.0
    assert MeasuredLoad(load=LOAD, replies=[replace(GOOD, times=(0.5, 0.5))]).pieces_at_once == 2.0
    slower = replace(GOOD, times=(0.01, 0.01, 0.051))
    assert MeasuredLoad(load=LOAD, replies=[slower]).pieces_at_once == 1.5


def test_runs_that_are_cut_short() -> None:
    of = session(loads=[])
    sessions.close_interrupted(of)
    assert (of.kind, of.ended) == ("interrupted", "interrupted")
    of.loads.append(MeasuredLoad(load=LOAD, replies=[GOOD] * 3))
    sessions._cut(of, "time", "late")
    assert (of.kind, of.ended, of.loads[0].suspect) == ("time", "late", ["cut short: late"])
    of.loads.append(MeasuredLoad(load=LOAD, replies=[GOOD] * 4))
    sessions._cut(of, "failed", "no reply")
    assert of.loads[1].suspect == [] and of.loads[0].suspect == ["cut short: late"]


# --- how a server wants to be asked


def probe(sender: Sender, **more: Any) -> tuple[_Probe, Dialect, Session]:
    of = session(**more)
    found = _Probe(of, sender, Server(model="m", id="id"))  # type: ignore[arg-type]
    return found, run(found.dialect()), of


def test_the_first_way_of_asking() -> None:
    """Sixteen words for eight tokens: 72 tokens at the most; its reply counts tokens, or not."""
    sender = Sender(GOOD)
    found, dialect, of = probe(sender)
    assert dialect == Dialect(api="completions") and found.counted
    assert (of.warmed, of.budget.requests, of.budget.tokens) == (1, 1, 72)
    path, body, output = sender.asked[0]
    assert (path, body["model"], len(body["prompt"].split()), body["max_tokens"], output) == (
        "/completions", "id", 16, 8, 8
    )  # fmt: skip
    assert not probe(Sender(replace(GOOD, prompt=None)))[0].counted
    assert probe(Sender(GOOD), api="chat")[1] == Dialect(api="chat")


def test_ways_that_a_server_does_not_take(pauses: list[float]) -> None:
    """A page that is not there: the other interface; options that it refuses: without them."""
    for status in (404, 405):
        assert probe(Sender(failed(status), GOOD))[1].api == "chat"
    for status in (400, 422):
        assert probe(Sender(failed(status, error="ignore_eos?"), GOOD))[1] == Dialect(
            api="completions", ignore_eos=False
        )
    nothing = Sender(failed(404, error="gone"), failed(404, error="gone too"))
    with pytest.raises(NetworkError, match="takes no request for 'm'") as refused:
        probe(nothing)
    assert refused.value.because == "/completions: gone; /chat/completions: gone too"
    with pytest.raises(NetworkError) as refused:
        probe(Sender(failed(404, error="gone")), api="completions")
    assert refused.value.because == "/completions: gone"
    with pytest.raises(NetworkError) as refused:
        probe(Sender(failed(400)), api="chat")
    assert refused.value.because == "/chat/completions: no"


def test_first_requests_that_fail(pauses: list[float]) -> None:
    for status, hint in ((401, True), (403, True), (402, False), (500, False)):
        with pytest.raises(NetworkError, match="the first request to http://host failed") as refused:
            probe(Sender(failed(status, error="said")))
        assert refused.value.because == "said" and bool(refused.value.hint) == hint
    with pytest.raises(NetworkError, match="first request"):  # whatever a stream that broke had as a status
        probe(Sender(failed(404, "stream")))


# --- loads


def runner(sender: Sender, of: Session, count: Any = None, watch: Callable[..., None] | None = None) -> _Runner:
    of.server = of.server or Server(model="m", id="id", context=4096)
    return _Runner(of, sender, Dialect(api="completions"), count, watch or (lambda *_: None))  # type: ignore[arg-type]


def counting(*tokens: int | None) -> Any:
    left = list(tokens)

    async def count(text: str) -> int | None:
        return left.pop(0)

    return count


def test_tokens_of_a_word(pauses: list[float]) -> None:
    """48 words of 100 tokens and 384 of 772: 2 each; of a server that says so, or of two replies, each of 2 x words + 8
    tokens at the most."""
    of = session()
    one = runner(Sender(GOOD), of)
    run(one.learn_sizes(counting(100, 772)))
    assert one.sizing.each == pytest.approx(2.0) and (of.budget.requests, of.warmed) == (0, 0)
    sender = Sender(replace(GOOD, prompt=100), replace(GOOD, prompt=772))
    one = runner(sender, of)
    run(one.learn_sizes(counting(None, None)))
    assert one.sizing.each == pytest.approx(2.0)
    assert (of.budget.requests, of.budget.tokens, of.warmed) == (2, 104 + 776, 2)
    assert [len(body["prompt"].split()) for _, body, _ in sender.asked] == [48, 384]
    assert {(path, output) for path, _, output in sender.asked} == {("/completions", 8)}


def test_tokens_that_nobody_counts(pauses: list[float]) -> None:
    for sender, count, said in (
        (Sender(failed(500)), counting(None), "a prompt of 48 words failed"),
        (Sender(replace(GOOD, prompt=None)), counting(None), "does not say how many tokens"),
        (Sender(GOOD), counting(0), "does not say how many tokens"),
        (Sender(GOOD), counting(48, 48 + 83), "does not count the tokens"),  # 0.247 a word
        (Sender(GOOD), counting(48, 48 + 13441), "does not count the tokens"),  # 40.003
    ):
        with pytest.raises(NetworkError, match=said):
            run(runner(sender, session()).learn_sizes(count))
    for more in (84, 13440):  # 0.25 and 40 a word
        run(runner(Sender(GOOD), session()).learn_sizes(counting(48, 48 + more)))


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A server without other work, and which look at it was taken."""
    looks: list[str] = []

    def look(name: str) -> Any:
        async def found(client: Any) -> Occupancy:
            looks.append(name)
            return Occupancy(running=0.0, finished=0.0)

        return found

    for name in ("occupancy", "settled"):
        monkeypatch.setattr(sessions, name, look(name))
    monkeypatch.setattr(_Runner, "_judge", lambda *_: None)
    return looks


def test_a_closed_loop(pauses: list[float], quiet: list[str]) -> None:
    """Two users, two requests to warm up; six requests are paid for before they are sent, each of 108 tokens: a
    twentieth more than its prompt may be."""
    told: list[tuple[str, int, int]] = []
    sender, of = Sender(GOOD), session(loads=[LOAD])
    one = runner(sender, of, watch=lambda *words: told.append(words))
    run(one.run())
    assert len(sender.asked) == 6 and sender.connections == [2]
    assert (of.budget.requests, of.budget.tokens, of.warmed) == (6, 6 * 108, 2)
    assert [(len(load.replies), load.suspect) for load in of.loads] == [(4, [])]
    name = LOAD.describe()
    assert told == [(f"warming up: {name}", 0, 4), *((name, done, 4) for done in (1, 2, 3, 4))]
    assert quiet == ["occupancy", "settled"] and one.done == 4
    quiet.clear()
    run(runner(Sender(GOOD), session(loads=[LOAD], busy=True)).run())
    assert quiet == ["occupancy", "occupancy"]


def test_warm_up_is_of_the_users_at_the_most() -> None:
    one = runner(Sender(GOOD), session(warmup=3))
    sizes = [one._warmup(replace(LOAD, users=users, requests=9)) for users in (1, 3, 4)]
    assert sizes == [1, 3, 3]
    assert one._warmup(PlannedLoad(prompts=(9, 9), outputs=(1, 1))) == 2


def test_loads_that_are_left_out(pauses: list[float], quiet: list[str]) -> None:
    """The first is longer than the server's context (3,899 x 1.05 + 3), the second is more than the bounds leave."""
    long, many = replace(LOAD, prompt=3899), replace(LOAD, requests=399)
    of = session(loads=[long, many, LOAD])
    one = runner(Sender(GOOD), of)
    assert one.planned == 4 + 399 + 4
    run(one.run())
    assert [load for load, _ in of.left_out] == [long, many] and one.planned == one.done == 4
    assert [measured.load for measured in of.loads] == [LOAD]
    whole = session(loads=[replace(LOAD, requests=398), replace(LOAD, prompt=3898)], bounds=Bounds(requests=800))
    run(runner(Sender(GOOD), whole).run())
    assert whole.left_out == []


def test_a_server_that_stops_answering(pauses: list[float], quiet: list[str]) -> None:
    """Three failures without a reply end a load, and the run; requests that it refuses as bad end the load alone."""
    alone = replace(LOAD, users=1, requests=9)
    of = session(loads=[alone, LOAD], warmup=0)
    one = runner(Sender(failed(500, error="broken")), of)
    run(one.run())
    assert [len(measured.replies) for measured in of.loads] == [3] and one.done == 9
    assert (of.kind, of.ended) == ("failed", f"no reply to {alone.describe()}: broken")
    assert of.loads[0].suspect == [f"cut short: {of.ended}"]
    for status in (400, 413, 422):
        of = session(loads=[alone, LOAD], warmup=0)
        run(runner(Sender(failed(status)), of).run())
        assert len(of.loads) == 2 and of.kind == ""
    both = session(loads=[alone, LOAD], warmup=0)
    run(runner(Sender(failed(400), failed(500)), both).run())
    assert len(both.loads) == 1
    few = session(loads=[replace(alone, requests=3), LOAD], warmup=0)
    run(runner(Sender(GOOD, failed(500)), few).run())
    assert len(few.loads) == 2


def test_users_of_a_plan(pauses: list[float], quiet: list[str]) -> None:
    """Each begins at its own time, and thinks after an answer."""
    plan = PlannedLoad(prompts=(50, 60, 70), outputs=(5, 6, 7), users=2, starts=(0.25, 0.5), think=(1.0, 2.0, 3.0))
    sender, of = Sender(GOOD), session(planned=plan, warmup=0)
    run(runner(sender, of).run())
    assert sorted(pauses) == [0.25, 0.5, 1.0, 2.0, 3.0] and len(sender.asked) == 3
    assert [output for _, _, output in sender.asked] == [5, 6, 7]
    assert [len(body["prompt"].split()) for _, body, _ in sender.asked] == [50, 60, 70]
    pauses.clear()
    run(runner(Sender(GOOD), session(loads=[replace(LOAD, users=3)], warmup=0)).run())
    assert pauses == [0.0] * 3


def test_an_open_loop_waits_for_nobody(pauses: list[float], quiet: list[str]) -> None:
    """A request that is turned away is not sent again."""
    plan = PlannedLoad(prompts=(50,) * 4, outputs=(5,) * 4, arrivals=(0.0, 10.0, 20.0, 30.0))
    sender, of = Sender(BUSY, GOOD), session(planned=plan, warmup=0)
    one = runner(sender, of)
    run(one.run())
    assert len(sender.asked) == 4 and [round(pause) for pause in pauses] == [0, 10, 20, 30]
    broken = Sender(failed(500))
    of_none = session(planned=replace(plan, prompts=(50,) * 9, outputs=(5,) * 9, arrivals=(0.0,) * 9), warmup=0)
    run(runner(broken, of_none).run())
    assert len(broken.asked) < 9 and of_none.kind == "failed"
    assert sender.connections == [1] and [reply.ok for reply in of.loads[0].replies] == [False, True, True, True]


def test_what_a_reply_does_not_say(pauses: list[float]) -> None:
    """Tokens of its prompt as they were counted before; of an answer that ended at its limit those asked for."""
    load, asked = MeasuredLoad(load=LOAD), _Request(10, 33, b"{}", 3)

    def sent(**more: Any) -> Reply:
        run(runner(Sender(replace(GOOD, **more)), session())._send(load, asked))
        return load.replies[-1]

    assert (sent(prompt=None).prompt, sent(prompt=7).prompt) == (33, 7)
    assert sent(output=None).output == sent(output=0).output == 3
    assert sent(output=None, finish="stop").output is None and sent(output=2).output == 2
    run(runner(Sender(BUSY, GOOD), session())._send(load, asked))
    assert load.replies[-1].refused == 1 and load.replies[-1].ok  # nobody else's turn was missed
    one = runner(Sender(replace(GOOD, prompt=30)), session())
    run(one._send(load, asked))
    assert one.sizing.each == 3.0 and one.done == 1
    for reply in (failed(500), replace(GOOD, prompt=0)):
        one = runner(Sender(reply), session())
        run(one._send(load, asked))
        assert one.sizing.each == 1.0 and one.done == 1


def test_texts_that_prompts_share() -> None:
    """A quarter of the prompt; a plan's heads come before what is its own."""
    one = runner(Sender(GOOD), session())
    assert one._heads(LOAD) == []
    (head,) = one._heads(replace(LOAD, head_tokens=25))
    assert len(head.split()) == 25
    asked = run(one._request(replace(LOAD, head_tokens=25), 1, [head]))
    text = json.loads(asked.body)["prompt"]
    assert text.startswith(f"{head} ") and len(text.split()) == 100 == asked.words and asked.tokens is None
    plan = PlannedLoad(prompts=(50, 60), outputs=(5, 6), heads=(1, 0), head_tokens=20)
    heads = one._heads(plan)
    assert [len(one.split()) for one in heads] == [20, 20] and heads[0] != heads[1]
    counted = runner(Sender(GOOD), session(), counting(77))
    asked = run(counted._request(plan, 1, heads))
    assert json.loads(asked.body)["prompt"].startswith(f"{heads[0]} ")
    assert (asked.words, asked.tokens, asked.output) == (80, 77, 6)
    assert len(json.loads(run(one._request(plan, 0, heads)).body)["prompt"].split()) == 70


def test_a_server_is_looked_at_first(monkeypatch: pytest.MonkeyPatch, pauses: list[float]) -> None:
    looks: list[str] = []
    told: list[Any] = []
    running = [3.0]

    def look(name: str) -> Any:
        async def found(client: Any) -> Occupancy:
            looks.append(name)
            return Occupancy(running=running[0])

        return found

    async def describe(client: Any, wanted: Any) -> Server:
        return Server(model="m", id="id")

    async def trip(address: Any) -> float:
        return 0.005

    monkeypatch.setattr(sessions, "occupancy", look("occupancy"))
    monkeypatch.setattr(sessions, "settled", look("settled"))
    monkeypatch.setattr(sessions, "describe", describe)
    monkeypatch.setattr(sessions, "round_trip", trip)
    monkeypatch.setattr(sessions, "remote_counter", lambda *words: told.append(words) or counting(100, 772))
    with pytest.raises(UsageError, match="is at work for others"):
        run(sessions._ready(session(), Sender(GOOD), lambda *_: None))  # type: ignore[arg-type]
    of = session(busy=True)
    one = run(sessions._ready(of, Sender(GOOD), lambda *_: None))  # type: ignore[arg-type]
    assert looks == ["settled", "occupancy"] and of.round_trip == 0.005 and of.before.running == 3.0
    assert isinstance(one.client, Sender) and one.dialect.api == "completions"
    assert one.count is None and one.sizing.each == pytest.approx(2.0)
    running[0] = 0.0
    blind = run(sessions._ready(session(), Sender(replace(GOOD, prompt=None)), lambda *_: None))  # type: ignore[arg-type]
    own = session()
    own.settings.count = counting(48, 48 + 1344)  # type: ignore[misc]
    counted = run(sessions._ready(own, Sender(GOOD), lambda *_: None))  # type: ignore[arg-type]
    assert counted.sizing.each == pytest.approx(4.0)
    assert blind.count is not None and told[-1][1:] == ("id", "completions")


def test_the_time_of_a_run_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a minute is said in minutes."""

    deadlines: list[float] = []

    async def ready(*_: Any) -> Any:
        deadlines.append(asyncio.get_running_loop().time())
        raise TimeoutError

    def timeout_at(deadline: float) -> Any:
        deadlines.append(deadline)
        return asyncio.timeout(None)

    monkeypatch.setattr(sessions, "_ready", ready)
    monkeypatch.setattr(sessions, "asyncio", SimpleNamespace(**vars(asyncio) | {"timeout_at": timeout_at}))
    made: list[Any] = []
    monkeypatch.setattr(sessions, "Client", lambda *words: made.append(words) or Sender(GOOD))
    of = session(bounds=Bounds(seconds=30.0))
    run(sessions.measure(of, lambda *_: None))
    assert (of.kind, of.ended) == ("time", "--max-minutes 0.5 was over")
    assert made == [(of.settings.address, "", 9.0)]
    assert deadlines[0] - deadlines[1] == pytest.approx(30.0, abs=5.0)  # as long as this machine takes between them
