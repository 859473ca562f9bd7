"""``inferplan plan --from URL``: a running server corrects the plan. It is read, or measured where that is allowed."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click

from inferplan.cli.declared import with_options
from inferplan.cli.options import API_KEY, Command, engine_is_named, key_asked, typed, watching, writable
from inferplan.errors import InfeasibleError, InferplanError, NetworkError, ToleranceError, UsageError
from inferplan.extras import require
from inferplan.features import require_together
from inferplan.fields import Quantity, Switch, Text, Topic, ask, need
from inferplan.files import save
from inferplan.lists import parse_values
from inferplan.measuring.loads import Bounds, LoadChoice
from inferplan.planning.question import Question

if TYPE_CHECKING:
    from inferplan.devices.anchors import Anchor
    from inferplan.estimate.deployment import Deployment
    from inferplan.measuring.address import Address, Key
    from inferplan.measuring.server import Server
    from inferplan.validation.held_out import HeldOut
    from inferplan.validation.run import Pricing

_Given = TypeVar("_Given")
_SCRAPES = 36
"""Scrapes of a server that is read, whatever the time: six for each stretch that is a row."""
_TIMEOUT = 30.0
"""Seconds without a byte after which a server is taken not to say what it is."""
_MOST_OUTPUT = 128
"""Tokens that a request of ours asks for at the most."""


def _awaited(work: Coroutine[Any, Any, _Given]) -> _Given:
    """What it gives in an event loop of its own (asyncio takes 20 ms to import, and few plans ask a server)."""
    import asyncio

    return asyncio.run(work)


def _stated(text: str) -> tuple[tuple[str, str], ...]:
    """``gpu=h100-sxm,tp=2`` as pairs. Raises ``UsageError``."""
    from inferplan.cli.validate import FACTS_OF_DEPLOYMENT

    found: dict[str, str] = {}
    for one in parse_values(text):
        name, _, value = (part.strip() for part in one.partition("="))
        if name not in FACTS_OF_DEPLOYMENT or name == "model" or not value:
            known = ", ".join(fact for fact in FACTS_OF_DEPLOYMENT if fact != "model")
            raise UsageError(f"--from-facts {one!r} is no fact of a server", because=f"known: {known}", hint="tp=2")
        found[name] = value
    return tuple(found.items())


@dataclass(frozen=True, kw_only=True)
class FromAsked:
    """The server that a plan begins from. facts: what it runs on, where that is not what is planned for. seconds: how
    long it is read or measured. load: whether requests may be sent to it."""

    topic: ClassVar[Topic] = Topic("a running server", "none is named", "--from http://localhost:8000")

    url: str = field(
        metadata=need(
            "--from",
            Text(),
            "A running server of MODEL, whose times correct the plan: its /metrics are read, no request is sent.",
            "URL",
        )
    )
    facts: tuple[tuple[str, str], ...] = ask(
        "--from-facts",
        Text(_stated),
        "What it runs on, where that is not the one --gpu, --tp and --quant of the plan: gpu=h100-sxm,tp=2,quant=fp8.",
        (),
        metavar="LIST",
    )
    seconds: float = ask(
        "--from-seconds",
        Quantity("seconds", above=True),
        "How long to read it, or to send it requests [180].",
        180.0,
        metavar="TIME",
    )
    load: bool = ask(
        "--send-load", Switch(), "Measure it: send it random prompts. It has to be idle, and is busy meanwhile.", False
    )
    served_model: str | None = ask(
        "--served-model", Text(), "MODEL's name at the server [its only one].", None, metavar="NAME"
    )


def from_options(command: Command) -> Command:
    """Adds the options of a server that a plan begins from, but for those of :class:`FromAsked`."""
    out = click.option(
        "--anchor-out", metavar="FILE.yaml", callback=writable, help="Write what was measured, for --anchor."
    )
    return with_options([API_KEY])(out(command))


def anchored(question: Question, asked: FromAsked | None, api_key_env: str, anchor_out: str | None) -> Question:
    """The question with the anchor of the server's own times; as it is where none is named."""
    if asked is None:
        if given := typed(["api_key_env", "anchor_out"]):
            raise UsageError(f"{', '.join(given)} needs --from URL, a running server", hint=FromAsked.topic.hint)
        return question
    require("measure", "plan --from")
    from inferplan.measuring.address import address_of
    from inferplan.validation.anchor import anchor_yaml

    _require_askable(question)
    address, key = address_of(asked.url), key_asked(api_key_env)
    source = _Source(question=question, asked=asked, address=address, key=key)
    anchor = source.anchor()
    if anchor_out is not None:
        save(anchor_out, anchor_yaml(anchor))
    space = replace(source.space, anchor=anchor)
    return replace(question, space=space)


def _require_askable(question: Question) -> None:
    """Raise ``UsageError`` for what a server's times cannot correct: before it is asked for anything."""
    from inferplan.catalog.files import load_model

    if question.space.anchor is not None:
        raise UsageError(
            "--anchor and --from are two anchors", because="a plan takes one", hint="leave one of them out"
        )
    if load_model(question.space.base.model).encodes:
        raise UsageError("--from needs a model that generates", because="an anchor is of first and further tokens")
    require_together("plan", question.features - {"pools"} | {"anchor"})
    if "prompt-pool" in question.features:
        raise UsageError(
            "--from and the --prefill-... options do not go together",
            because="an anchor corrects one pool, and these describe a pool for prompts",
            hint="leave one of them out",
        )


@dataclass(kw_only=True)
class _Source:
    """A server as the source of an anchor. space: that of the plan with the engine of the server; assumed: what nobody
    said, in words."""

    question: Question
    asked: FromAsked
    address: Address
    key: Key
    assumed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.space = replace(self.question.space, disaggregate=False)
        self.pricing = self._pricing()

    def _pricing(self) -> Pricing:
        from inferplan.validation.run import Pricing

        base = self.question.space.base
        return Pricing(calibration=base.calibration, ideal=base.ideal)

    def anchor(self) -> Anchor:
        """The measured runs of the server, one of which was held out to judge the others."""
        server = self._look()
        facts = self._facts(server)
        deployment = self._deployed(server, facts)
        self._require_candidate(deployment)
        found = f"{server.model} under {deployment.engine.describe()} at {self.address.root}"
        for line in (f"found {found}", *(f"assumed: {one}" for one in self.assumed)):
            click.echo(f"note: {line}", err=True)
        lines, notes = self._measured(facts) if self.asked.load else self._read(server, facts)
        return self._fitted(lines, facts, [f"found {found}", *(f"assumed: {one}" for one in self.assumed)], notes)

    def _look(self) -> Server:
        """What answers there. Raises ``UsageError`` for another model, and for one at work that is to be measured."""
        from inferplan.measuring.client import Client
        from inferplan.measuring.server import describe, settled

        async def look() -> tuple[Server, float]:
            async with Client(self.address, self.key, _TIMEOUT) as client:
                server = await describe(client, self.asked.served_model)
                return server, (await settled(client)).running or 0.0 if self.asked.load else 0.0

        server, running = _awaited(look())
        if running:
            raise UsageError(
                f"{self.address.root} is at work for others",
                because=f"{running:.0f} requests are in it before the first of ours",
                hint="wait until it is idle, or leave --send-load out: it is then read, and no request is sent",
            )
        self._require_model(server)
        return server

    def _require_model(self, server: Server) -> None:
        from inferplan.catalog.files import find, load_model

        own, others = load_model(self.question.space.base.model).name, []
        for name in dict.fromkeys(filter(None, (server.source, server.model))):
            try:
                others.append(load_model(str(find("models", name))).name)
            except InferplanError:
                continue  # a name of the server's own, or a folder there
        if others and own not in others:
            raise UsageError(
                f"{self.address.root} serves {others[0]}, not {own}",
                because=f"it says {server.model}" + (f", from {server.source}" if server.source else ""),
                hint=f"inferplan plan {others[0]} --from {self.asked.url}",
            )
        if not others:
            self.assumed.append(f"{server.model} is {own}: the server's name for it says no more")

    def _facts(self, server: Server) -> dict[str, str]:
        """What runs there, by the columns of rows: as stated, as the server says, else as the plan's only one."""
        from inferplan.cli.validate import FACTS_OF_DEPLOYMENT, facts_of

        space, stated = self.question.space, dict(self.asked.facts)
        values: dict[str, Any] = dict.fromkeys(name.replace("-", "_") for name in FACTS_OF_DEPLOYMENT)
        values |= {name.replace("-", "_"): value for name, value in stated.items()} | {"backend": None}
        if "gpu" not in stated:
            if len(space.gpus) != 1:
                raise UsageError(
                    "which GPU the server runs on is not known", hint="--from-facts gpu=h100-sxm, or one --gpu to plan"
                )
            values["gpu"] = space.gpus[0]
            self.assumed.append(f"it runs on {space.gpus[0]}, which is planned for")
        facts = facts_of({**values, "model": space.base.model}, loaded=False)
        if "tp" not in facts and server.tp is None:
            if space.tp is None or len(space.tp) != 1:
                raise UsageError(
                    "how many GPUs the server runs on is not known",
                    because="it does not say its tensor parallelism",
                    hint="--from-facts tp=1, or one --tp to plan",
                )
            facts["tp"] = str(space.tp[0])
            self.assumed.append(f"its tensor parallelism is {space.tp[0]}, which is planned for")
        if not facts.keys() & {"precision", "weights"}:
            one = space.quants[0] if space.quants and len(space.quants) == 1 else None
            facts["precision"] = one or "native"
            self.assumed.append(f"its formats are {one or 'those of the checkpoint (native)'}; no server says its own")
        if backends := space.base.flags.backends:
            facts["backends"] = ",".join("=".join(pair) for pair in backends)
        if "engine" not in facts and not server.engine:
            if not engine_is_named() or len(space.engines) != 1:
                raise UsageError("the server does not say which engine it is", hint="--from-facts engine=vllm@0.20")
            facts["engine"], _, version = space.engines[0].partition("@")
            facts |= {"engine_version": version} if version else {}
            self.assumed.append(f"it is {space.engines[0]}, which is planned for")
        return facts

    def _deployed(self, server: Server, facts: Mapping[str, str]) -> Deployment:
        """What runs there. Raises ``UsageError`` where the server says otherwise, or too little is known."""
        from inferplan.measuring.figures import facts_of_server
        from inferplan.validation.deploy import deployment_of
        from inferplan.validation.rows import row_of

        some = {"isl": "128", "osl": "16", "concurrency": "1"}
        row = row_of(self.address.root, {**some, **facts_of_server(server)}, facts)
        if row.opposed:
            raise UsageError(f"the server says {row.opposed[0]}", hint="leave it out of --from-facts")
        if row.run is None:
            raise UsageError(f"the server cannot be predicted: {row.refused}", hint="--from-facts engine=vllm,tp=1")
        deployment, notes = deployment_of(row.run, self.pricing.calibration, self.pricing.ideal)
        self.assumed += notes
        return deployment

    def _require_candidate(self, deployment: Deployment) -> None:
        """Raise ``UsageError`` where the server is none of the candidates, or priced otherwise: before it is measured.

        The engine of the plan is that of the server, with its release, where none was named.
        """
        from inferplan.catalog.assemble import anchor_process, load_engine
        from inferplan.devices.anchors import Anchor, AnchorRow
        from inferplan.estimate.anchoring import NEWEST, fingerprint, system_of
        from inferplan.planning.space import Rejections, candidates

        if not engine_is_named():
            name, release = deployment.engine.name, deployment.engine.release
            engines = (name,)
            if release:
                try:
                    load_engine(f"{name}@{release}")
                    engines = (f"{name}@{release}",)
                except InferplanError as error:
                    self.assumed.append(f"{name} is planned for with its defaults on file: {error.what}")
            self.space = replace(self.space, engines=engines)
        told = {"runs": f"the server at {self.address.root}", "kernels": deployment.calibration.note or NEWEST}
        bare = Anchor(
            system=system_of(deployment),
            priced_with=fingerprint(deployment),
            provenance=told,
            process=anchor_process(),
            rows=(AnchorRow(users=1.0, prompt=1.0, output=1.0),),
        )  # says nothing yet
        one = (1,)
        for _ in candidates(replace(self.space, anchor=bare, tp=one, pp=one, ep=one, dp=one), Rejections()):
            pass

    def _measured(self, facts: Mapping[str, str]) -> tuple[list[dict[str, str]], list[str]]:
        """Rows of loads that were sent, and notes."""
        from inferplan.measuring.figures import figure_rows
        from inferplan.measuring.session import MeasuringSettings, measure, start
        from inferplan.reports.measuring import late_client
        from inferplan.validation.held_out import FEWEST

        demand = self.question.demand
        settings = MeasuringSettings(
            address=self.address,
            key=self.key,
            choice=loads_around(demand.prompt.average, demand.output.average),
            bounds=Bounds(seconds=self.asked.seconds),
            served_model=self.asked.served_model,
        )
        session = start(settings)
        with watching() as watch:
            _awaited(measure(session, watch))
        lines, late = figure_rows(session, facts), late_client(session.loads)
        notes = [late] if late else []
        notes += [f"ended early: {session.ended}"] if session.ended else []
        notes += [f"not sent: {load.describe()}: {why}" for load, why in session.left_out]
        if len(lines) <= FEWEST:
            figures = f"{len(lines)} loads have figures, and it takes more than {FEWEST}"
            failed = NetworkError if session.ended else InfeasibleError
            raise failed(
                f"{self.address.root} was not measured",
                because="; ".join([figures, *notes]),
                hint="a longer --from-seconds; is this the address of an inference server?"
                if session.ended
                else "a server that takes prompts as long as the plan's",
            )
        return lines, notes

    def _read(self, server: Server, facts: Mapping[str, str]) -> tuple[list[dict[str, str]], list[str]]:
        """Rows of what the server did for others, and notes."""
        from inferplan.measuring.figures import facts_of_server
        from inferplan.measuring.scrapes import Scraped, ScrapesAsked, scrape
        from inferplan.validation.held_out import FEWEST
        from inferplan.watching.counters import read_counters
        from inferplan.watching.readings import readings

        scraped, seconds = Scraped(address=self.address), self.asked.seconds
        with watching() as watch:
            times = ScrapesAsked(every=seconds / _SCRAPES, lasting=seconds)
            _awaited(scrape([scraped], self.key, times, watch, read_counters))
        found = readings(scraped, seconds, {**facts, **facts_of_server(server)})
        notes = [f"left out: {count} {why}" for why, count in found.left_out.items()]
        notes += [scraped.gone] if scraped.gone else []
        if len(found.lines) <= FEWEST:
            raise InfeasibleError(
                f"{self.address.root} did too little to say how fast it is",
                because="; ".join(
                    [f"{len(found.lines)} stretches have figures, more than {FEWEST} are needed", *notes]
                ),
                hint="a longer --from-seconds; or --send-load, where it is idle and may be measured",
            )
        if found.alike:
            notes.append("every stretch had about the same load: how far loads unlike it are off is not known")
        return found.lines, notes

    def _fitted(
        self, lines: list[dict[str, str]], facts: Mapping[str, str], told: list[str], notes: list[str]
    ) -> Anchor:
        """The anchor of the rows. Raises ``InfeasibleError`` for too few that can be used, ``ToleranceError`` where it
        would make the plan worse."""
        from inferplan.measuring.figures import csv_text
        from inferplan.reports.measuring import held_lines, held_record
        from inferplan.validation.anchor import anchor_of
        from inferplan.validation.held_out import judge

        judged = judge(f"{self.address.host}:{self.address.port}", csv_text(lines), self.pricing, facts)
        if judged.held is None:
            suspect = dict.fromkeys(line["suspect"] for line in lines if line["suspect"])
            reading = "a longer --from-seconds; or --send-load, where it is idle and may be measured"
            raise InfeasibleError(
                f"{self.address.root} gives no anchor",
                because="; ".join([judged.why, *suspect, *notes]),
                hint=f"inferplan measure {self.address.root} shows each load" if self.asked.load else reading,
            )
        _require_worth(judged.held)
        day = datetime.now(UTC).date().isoformat()
        how = "measured at" if self.asked.load else "read from"
        anchor, left_out = anchor_of(judged.scored, self.pricing, f"{how} {self.address.root} on {day}")
        notes += [f"left out: {where}: {why}" for where, why in left_out]
        notes += held_lines(judged.held)
        for line in notes:
            click.echo(f"note: {line}", err=True)
        more = {"told": [*told, *notes], "held_out": held_record(judged.held)}
        return anchor.model_copy(update={"provenance": {**anchor.provenance, **more}})


def loads_around(prompt: float, output: float) -> LoadChoice:
    """Loads around the plan's own of so many mean tokens: one user with its prompts and with shorter ones, and up to 64
    at a time.

    Replies are of 128 tokens at the most: what is longer says no more of a step, and takes the minutes of other loads.
    """
    tokens = max(round(prompt), 4)
    return LoadChoice(
        lengths=(tokens // 4, tokens),
        concurrency=(4, 16, 64),
        shared_prompt=tokens,
        output=min(max(round(output), 2), _MOST_OUTPUT),
        single_requests=3,
        rounds=2,
    )


def _require_worth(held: HeldOut) -> None:
    """Raise ``ToleranceError`` where an anchor would make the plan worse, or cannot make it right."""
    from math import exp

    from inferplan.reports.measuring import held_lines
    from inferplan.validation.held_out import beyond, worse
    from inferplan.validation.score import NAMES

    said = "; ".join(held_lines(held))
    if (one := worse(held)) is not None:
        raise ToleranceError(
            f"the server's times make {NAMES[one.metric]} worse: its error was {one.error_before:+z.1%}, and is "
            f"{one.error:+z.1%} by the other loads",
            because=said,
            hint="its loads differ by more than their size: no other requests meanwhile, or a longer --from-seconds",
        )
    if (one := beyond(held)) is not None:
        most = exp(held.fitted.anchor.process.clip)
        raise ToleranceError(
            f"{NAMES[one.metric]} of most loads is off by more than {most:.2f} times, which no anchor corrects",
            because=said,
            hint="something is not as it was stated (formats, GPU, tp, slots): --from-facts",
        )
