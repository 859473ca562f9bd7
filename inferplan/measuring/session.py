"""One run against a server: look, warm up, measure load after load within the bounds, and keep what was measured."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, NamedTuple, get_args

from inferplan.errors import NetworkError, UsageError
from inferplan.fields import Real, Switch, Text, Whole, Words, ask, part
from inferplan.measuring.address import Address, Key
from inferplan.measuring.client import Client, Reply, lateness, round_trip
from inferplan.measuring.dialect import Api, Dialect
from inferplan.measuring.loads import Bounds, Budget, LoadChoice, UsersLoad, too_long
from inferplan.measuring.planned import PlannedLoad
from inferplan.measuring.prompts import LEAST, MOST, Prompts, PromptSizing
from inferplan.measuring.server import Occupancy, Server, describe, occupancy, settled
from inferplan.measuring.tokens import Counter, remote_counter

_SIZES = (48, 384)
"""Words of the two prompts that say how many tokens a word has."""
_PROBE_OUTPUT = 8
_HOPELESS = 3
"""So many failures and not one reply end a load."""
_EMPTY_PIECES = 2
"""Pieces without a token, at the begin and at the end of a reply, that some servers send."""
_CACHED = 0.25
"""Share of prompt tokens from a cache, beyond those that were meant to be, above which a load is suspect."""
_FAILED = 0.1
"""Share of requests that failed, or were refused at first, above which a load is suspect: the others had fewer
neighbours than it says."""
_TRIES = 3
"""How often a request is sent that is turned away before any work is done."""
_PAUSE = 0.5
"""Seconds before the second time where the server does not say; twice as long before the third."""
_NOTICED = 0.05
"""Seconds of a whole reply below which nobody can say whether its pieces came at once."""
_BUFFERED = 1.5
"""Pieces that come at once above which something holds them back on their way."""


@dataclass(frozen=True, kw_only=True)
class MeasuringSettings:
    """What to measure and within which bounds.

    api: which of the two, ``None`` for the first that the server has. served_model: its name there. busy: measure a
    server that is at work for others, too. warmup: requests of its own size before each load. count: tokens of a text,
    where somebody can say so before it is sent.
    """

    address: Address
    key: Key = field(default_factory=Key)
    choice: LoadChoice = part(LoadChoice, LoadChoice())
    warmup: int = ask(
        "--warmup",
        Whole(0),
        "Warm-up requests of the same size before each load, left out of its figures.",
        2,
        shown=True,
    )
    bounds: Bounds = part(Bounds, Bounds())
    timeout: float = ask(
        "--timeout", Real(0, above=True), "A request fails after this many seconds without a byte.", 120.0, shown=True
    )
    api: Api | None = ask("--api", Words(get_args(Api)), "API to use [the first that the server has].", None)
    served_model: str | None = ask(
        "--served-model", Text(), "The model's name at the server [its only one].", None, metavar="NAME"
    )
    planned: PlannedLoad | None = None
    """The load of a plan, in place of ``choice``."""
    busy: bool = ask("--busy", Switch(), "Measure even a server with other work; its rows are marked suspect.", False)
    count: Counter | None = None

    def __post_init__(self) -> None:
        if self.choice.repeated and not self.warmup:
            raise UsageError(
                "--prefix-hit-rate with --warmup 0",
                because="the first prompts of each load would find nothing in the cache",
                hint="--warmup 1",
            )


@dataclass(kw_only=True)
class MeasuredLoad:
    """A load and its replies. late: seconds by which this process came late to what it waited for. suspect: why its
    figures may be of something else."""

    load: UsersLoad | PlannedLoad
    replies: list[Reply] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    suspect: list[str] = field(default_factory=list)

    @property
    def good(self) -> list[Reply]:
        """The replies that have figures."""
        return [reply for reply in self.replies if reply.ok]

    @property
    def judged(self) -> list[Reply]:
        """Those of them that figures are made of: in a plan's load in the order of sending, without the fill."""
        if not isinstance(self.load, PlannedLoad):
            return self.good
        return [reply for reply in sorted(self.replies, key=lambda one: one.sent)[self.load.fill :] if reply.ok]

    @property
    def failed(self) -> list[Reply]:
        return [reply for reply in self.replies if not reply.ok]

    @property
    def pieces_at_once(self) -> float:
        """Pieces of text for each time that something comes, over replies of several pieces; 1 where there is none."""
        several = [reply for reply in self.good if len(reply.times) > 1 and reply.e2el > _NOTICED]
        return sum(len(one.times) for one in several) / max(sum(one.arrivals for one in several), 1) if several else 1.0

    @property
    def usable(self) -> bool:
        """Whether most of what was asked was answered."""
        return len(self.good) > len(self.failed)

    @property
    def hopeless(self) -> bool:
        return not self.good and len(self.failed) >= min(_HOPELESS, self.load.requests)


@dataclass(kw_only=True)
class Session:
    """All that a run has found so far; complete at any time, so that one that is cut short loses nothing.

    round_trip: seconds of the network, measured apart and taken off nothing. left_out: loads that were not run, and
    why. ended: why the run stopped before its last load, empty where it did not.
    """

    settings: MeasuringSettings
    server: Server | None = None
    dialect: Dialect | None = None
    before: Occupancy = field(default_factory=Occupancy)
    round_trip: float | None = None
    loads: list[MeasuredLoad] = field(default_factory=list)
    left_out: list[tuple[UsersLoad | PlannedLoad, str]] = field(default_factory=list)
    budget: Budget = field(default_factory=lambda: Budget(bounds=Bounds()))
    warmed: int = 0
    ended: str = ""
    kind: Literal["", "interrupted", "failed", "time"] = ""


async def _patiently(session: Session, tokens: int, send: Callable[[], Awaitable[Reply]], probing: bool) -> Reply:
    """A reply; a request that is turned away is sent again when the server says, as long as the bounds admit it.

    tokens: of the request at the most. probing: one of ours before any load, of which every failure but a refusal of
    what it asks is worth another try.
    """
    refused = 0
    while True:
        reply = replace(await send(), refused=refused)
        again = not reply.ok and (reply.unserved or (probing and (reply.failure == "stream" or reply.status >= 500)))
        pause = _PAUSE * 2**refused if reply.wait is None else reply.wait
        refused += 1
        if not again or refused == _TRIES or pause > session.settings.bounds.seconds:
            return reply
        if not session.budget.admits(1, tokens):
            return reply
        session.budget.spend(1, tokens)
        await asyncio.sleep(pause)


Watch = Callable[[str, int, int], None]
"""Told of each reply: what is being done, requests done, requests planned."""


def start(settings: MeasuringSettings) -> Session:
    """A run that has not begun."""
    return Session(settings=settings, budget=Budget(bounds=settings.bounds))


async def measure(session: Session, watch: Watch) -> None:
    """Run it; what is found is put into ``session`` as it comes.

    Raises ``NetworkError`` and ``UsageError`` for a server that cannot be measured. Requests that fail while loads run
    are counted, not raised; a server that stops answering ends the run.
    """
    settings = session.settings
    deadline = asyncio.get_running_loop().time() + settings.bounds.seconds
    async with Client(settings.address, settings.key, settings.timeout) as client:
        try:
            async with asyncio.timeout_at(deadline):
                runner = await _ready(session, client, watch)
                await runner.run()
        except TimeoutError:
            _cut(session, "time", f"--max-minutes {settings.bounds.seconds / 60:g} was over")


def _cut(session: Session, kind: Literal["interrupted", "failed", "time"], why: str) -> None:
    """Mark what was measured last as cut short."""
    session.kind, session.ended = kind, why
    if session.loads and len(session.loads[-1].replies) < session.loads[-1].load.requests:
        session.loads[-1].suspect.append(f"cut short: {why}")


def close_interrupted(session: Session) -> None:
    """Close a session whose run was ended by the user."""
    _cut(session, "interrupted", "interrupted")


async def _ready(session: Session, client: Client, watch: Watch) -> _Runner:
    """Look at the server and learn how it wants to be asked."""
    settings = session.settings
    watch("looking at the server", 0, 0)
    server = session.server = await describe(client, settings.served_model)
    session.before = await (occupancy if settings.busy else settled)(client)
    if session.before.running and not settings.busy:
        raise UsageError(
            f"{settings.address.root} is at work for others",
            because=f"{session.before.running:.0f} requests are in it before the first of ours",
            hint="wait until it is idle, or --busy to measure it anyway: every row is then marked suspect",
        )
    session.round_trip = await round_trip(settings.address)
    probe = _Probe(session, client, server)
    dialect = session.dialect = await probe.dialect()
    count = settings.count or remote_counter(client, server.id, dialect.api)
    runner = _Runner(session, client, dialect, None if probe.counted else count, watch)
    await runner.learn_sizes(count)
    return runner


class _Probe:
    """Finds the first way of asking that the server takes. counted: whether its replies then say their tokens."""

    counted = False

    def __init__(self, session: Session, client: Client, server: Server) -> None:
        self.session, self.client, self.server = session, client, server

    async def dialect(self) -> Dialect:
        """How to ask. Raises ``NetworkError`` with the server's words where it takes no request at all."""
        wanted = self.session.settings.api
        refusals = []
        apis: tuple[Api, ...] = (wanted,) if wanted else ("completions", "chat")
        for api in apis:
            dialect: Dialect | None = Dialect(api=api)
            while dialect is not None:
                reply = await self._ask(dialect)
                if reply.status in (400, 422):
                    refusals.append(f"{dialect.path}: {reply.error}")
                    dialect = dialect.without(reply.error)
                    continue
                if reply.ok or reply.failure != "status" or reply.status not in (404, 405):
                    self.counted = reply.prompt is not None
                    return self._checked(dialect, reply)
                refusals.append(f"{dialect.path}: {reply.error}")
                break
        raise NetworkError(
            f"{self.client.address.root} takes no request for {self.server.model!r}",
            because="; ".join(dict.fromkeys(refusals)),
            hint="--served-model NAME, --api completions or chat",
        )

    async def _ask(self, dialect: Dialect) -> Reply:
        tokens = 64 + _PROBE_OUTPUT
        self.session.budget.spend(1, tokens)
        self.session.warmed += 1
        body = dialect.body(self.server.id, Prompts().text(16), _PROBE_OUTPUT)
        send = partial(self.client.stream, dialect.path, body, _PROBE_OUTPUT)
        return await _patiently(self.session, tokens, send, probing=True)

    def _checked(self, dialect: Dialect, reply: Reply) -> Dialect:
        if reply.ok:
            return dialect
        hint = ""
        if reply.status in (401, 403):
            hint = "the variable that --api-key-env names (OPENAI_API_KEY) must hold its key"
        raise NetworkError(f"the first request to {self.client.address.root} failed", because=reply.error, hint=hint)


class _Request(NamedTuple):
    """A request that is ready to be sent: words of its prompt, tokens where they were counted before, tokens of the
    reply that it asks for."""

    words: int
    tokens: int | None
    body: bytes
    output: int


class _Runner:
    """Sends the requests of loads and keeps the bounds. ``count``: counts prompts where replies do not."""

    def __init__(self, session: Session, client: Client, dialect: Dialect, count: Counter | None, watch: Watch) -> None:
        self.session, self.client, self.dialect = session, client, dialect
        self.count, self.watch = count, watch
        self.context = None if session.server is None else session.server.context
        self.prompts, self.sizing = Prompts(), PromptSizing()
        planned = session.settings.planned
        self.loads = session.settings.choice.loads() if planned is None else [planned]
        self.planned = sum(load.requests for load in self.loads)
        self.done = 0

    async def learn_sizes(self, count: Counter) -> None:
        """How many tokens a word has: from ``count``, else from the usage of two replies.

        Raises ``NetworkError`` where neither says.
        """
        for words in _SIZES:
            text = self.prompts.text(words)
            tokens = await count(text)
            if tokens is None:
                most = 2 * words + _PROBE_OUTPUT
                self.session.budget.spend(1, most)
                self.session.warmed += 1
                body = self._body(text, _PROBE_OUTPUT)
                send = partial(self.client.stream, self.dialect.path, body, _PROBE_OUTPUT)
                reply = await _patiently(self.session, most, send, probing=True)
                if not reply.ok:
                    raise NetworkError(f"a prompt of {words} words failed", because=reply.error)
                tokens = reply.prompt
            if not tokens:
                raise NetworkError(
                    f"{self.client.address.root} does not say how many tokens a prompt has",
                    because="its replies hold no usage, and it has no /tokenize",
                    hint="--tokenizer FOLDER of the model",
                )
            self.sizing.learn(words, tokens)
        each = self.sizing.each
        if not LEAST <= each <= MOST:
            raise NetworkError(
                f"{self.client.address.root} does not count the tokens of prompts",
                because=f"by its counts of prompts of {_SIZES[0]} and {_SIZES[1]} words a word has {each:.3g} tokens",
                hint="--tokenizer FOLDER of the model",
            )

    async def run(self) -> None:
        """Every load that the bounds allow, in order."""
        for load in self.loads:
            reason = too_long(load, self.context) or self.session.budget.refuses(load, self._warmup(load))
            if reason:
                self.session.left_out.append((load, reason))
                self.planned -= load.requests
                continue
            await self._measured(load)
            last = self.session.loads[-1]
            if last.hopeless and any(reply.status not in (400, 413, 422) for reply in last.failed):
                _cut(self.session, "failed", f"no reply to {load.describe()}: {last.failed[-1].error}")
                return

    def _warmup(self, load: UsersLoad | PlannedLoad) -> int:
        return min(load.users or load.requests, self.session.settings.warmup)

    async def _measured(self, load: UsersLoad | PlannedLoad) -> None:
        """Warm up, run one load, and look whether it was alone."""
        warmup = self._warmup(load)
        self.session.budget.spend(load.requests + warmup, load.tokens + warmup * load.request_tokens)
        self.session.warmed += warmup
        self.watch(f"warming up: {load.describe()}", self.done, self.planned)
        heads = self._heads(load)
        first = [await self._request(load, number, heads) for number in range(warmup)]
        await asyncio.gather(*(self.client.stream(self.dialect.path, asked.body, asked.output) for asked in first))
        requests = [await self._request(load, one, heads) for one in range(load.requests)]  # before the clock runs
        before = await occupancy(self.client)
        await self.client.open_connections(max(load.users, 1))
        measured = MeasuredLoad(load=load)
        self.session.loads.append(measured)
        with lateness(measured.late):
            if isinstance(load, PlannedLoad) and load.arrivals:
                await self._open_loop(measured, requests, load.arrivals)
            else:
                await self._closed_loop(measured, requests)
        self.done += load.requests - len(measured.replies)  # requests that a hopeless load did not send
        look = occupancy if self.session.settings.busy else settled
        self._judge(measured, before, await look(self.client))

    async def _closed_loop(self, measured: MeasuredLoad, requests: list[_Request]) -> None:
        """Users, each of whom sends the next request when there is an answer; in a plan's load when it was read."""
        left, load = iter(enumerate(requests)), measured.load
        starts, think = (load.starts, load.think) if isinstance(load, PlannedLoad) else ((), ())

        async def user(start: float) -> None:
            await asyncio.sleep(start)
            for number, asked in left:
                await self._send(measured, asked)
                if measured.hopeless:
                    return
                if think:
                    await asyncio.sleep(think[number])

        async with asyncio.TaskGroup() as users:
            for number in range(load.users):
                users.create_task(user(starts[number] if starts else 0.0))

    async def _open_loop(self, measured: MeasuredLoad, requests: list[_Request], arrivals: tuple[float, ...]) -> None:
        """Each request at its own time, whatever became of those before."""
        clock = asyncio.get_running_loop()
        begin = clock.time()
        async with asyncio.TaskGroup() as sent:
            for asked, at in zip(requests, arrivals):
                await asyncio.sleep(begin + at - clock.time())
                if measured.hopeless:
                    return
                sent.create_task(self._send(measured, asked))

    async def _send(self, measured: MeasuredLoad, asked: _Request) -> None:
        """One request of a load, and its reply."""
        send = partial(self.client.stream, self.dialect.path, asked.body, asked.output)
        if isinstance(measured.load, PlannedLoad) and measured.load.arrivals:
            reply = await send()  # an open loop sends each request when it comes, and no later
        else:
            reply = await _patiently(self.session, measured.load.request_tokens, send, probing=False)
        if reply.prompt is None:
            reply = replace(reply, prompt=asked.tokens)
        if not reply.output and reply.finish == "length":
            reply = replace(reply, output=asked.output)  # one that ended at its limit has as many as were asked for
        measured.replies.append(reply)
        if reply.ok and reply.prompt:
            self.sizing.learn(asked.words, reply.prompt)
        self.done += 1
        self.watch(measured.load.describe(), self.done, self.planned)

    def _heads(self, load: UsersLoad | PlannedLoad) -> list[str]:
        """The texts that prompts of a load share."""
        if not load.heads:
            return []
        words = self.sizing.words(load.head_tokens)
        return [self.prompts.text(words) for _ in range(max(load.heads) + 1)]

    async def _request(self, load: UsersLoad | PlannedLoad, number: int, heads: list[str]) -> _Request:
        """A request with a new prompt, of the load's size or of its own."""
        prompt, output = load.prompt, load.output
        head = heads[load.heads[number]] + " " if heads else ""
        if isinstance(load, PlannedLoad):
            prompt, output = load.prompts[number] + load.head_tokens, load.outputs[number]
        words = self.sizing.words(prompt)
        text = head + self.prompts.text(words - len(head.split()))
        tokens = None if self.count is None else await self.count(text)
        return _Request(words, tokens, self._body(text, output), output)

    def _body(self, text: str, output: int) -> bytes:
        assert self.session.server is not None
        return self.dialect.body(self.session.server.id, text, output)

    def _judge(self, measured: MeasuredLoad, before: Occupancy, after: Occupancy) -> None:
        """Say why a load's figures may be of something else than the load."""
        looks = (self.session.before,) if after.lagging else (self.session.before, before, after)
        running = max(look.running or 0.0 for look in looks)
        if running:
            measured.suspect.append(f"{running:.0f} requests of others were in the server")
        if before.finished is not None and after.finished is not None:
            others = after.finished - before.finished - len(measured.replies)
            if others > 0:
                measured.suspect.append(f"{others:.0f} requests of others were answered meanwhile")
        if measured.failed and len(measured.failed) > _FAILED * len(measured.replies):
            measured.suspect.append(f"{len(measured.failed):,} of {len(measured.replies):,} requests failed")
        refused = sum(reply.refused > 0 for reply in measured.good)
        if refused > _FAILED * len(measured.replies):
            measured.suspect.append(
                f"{refused:,} of {len(measured.replies):,} requests were refused at first and sent again"
            )
        measured.suspect += [*_miscounted(measured), *_held_back(measured)]
        prompt = sum(reply.prompt or 0 for reply in measured.good)
        cached = sum(reply.cached or 0 for reply in measured.good)
        if prompt and cached > (_CACHED + measured.load.repeated) * prompt:
            measured.suspect.append(f"{cached / prompt:.0%} of prompt tokens came from a cache")


def _held_back(measured: MeasuredLoad) -> list[str]:
    """Why its times are not those of the server, where many pieces come at once that left it one after another."""
    at_once = measured.pieces_at_once
    if at_once <= _BUFFERED:
        return []
    return [f"{at_once:.1f} pieces come at once: a proxy or the engine holds them back, or this client is late"]


def _miscounted(measured: MeasuredLoad) -> list[str]:
    """Why the token counts of a load's replies cannot be right, or are not of what was asked for."""
    asked, found = measured.load, []
    least = min((reply.prompt for reply in measured.good if reply.prompt is not None), default=asked.prompt)
    if 2 * least < asked.prompt:
        found.append(f"a prompt of {asked.prompt} tokens counts as {least}")
    outputs = [reply.output for reply in measured.good if reply.output is not None]
    if outputs and max(outputs) > asked.output:
        found.append(f"a reply has {max(outputs)} tokens by the server's count, {asked.output} were asked for")
    fewer = [reply for reply in measured.good if reply.output and len(reply.times) > reply.output + _EMPTY_PIECES]
    if fewer:
        found.append(f"{fewer[0].output} tokens by the server's count came in {len(fewer[0].times)} pieces")
    return found
