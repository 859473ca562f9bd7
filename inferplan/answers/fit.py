"""Which devices hold a model: how many, in which format, with what context and how many requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from math import ceil, inf
from shlex import quote
from typing import Any

import numpy as np

from inferplan.catalog.assemble import (
    Request,
    assemble,
    assembled,
    load_engine,
    parse_memory,
    precision_of,
    usual_engine,
)
from inferplan.catalog.bills import Bill
from inferplan.catalog.files import load_hardware, load_model, names
from inferplan.catalog.offload import OffloadAsked
from inferplan.catalog.people import PeopleAsked
from inferplan.catalog.price_lists import PriceBook
from inferplan.catalog.quality import QUALITY, left_out, require_kept
from inferplan.catalog.sessions import load_sessions, people_of, sample_of
from inferplan.catalog.workloads import load_workload
from inferplan.errors import InfeasibleError, InferplanError, UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.formats import NATIVE, default_quants
from inferplan.estimate.memory import Footprint
from inferplan.estimate.run import sides_error
from inferplan.fields import Quantity, Text, Whole, ask, part, words_given
from inferplan.models.spec import ModelSpec, longer_than
from inferplan.shown import Shown
from inferplan.traffic.conversations import ThinkTime, parse_think_time
from inferplan.traffic.people import IN_FLIGHT, IN_FLIGHT_HELP, People, PeopleFigure
from inferplan.traffic.requests import parse_lengths
from inferplan.units import format_bytes
from inferplan.work.adapters import LoraAsked
from inferplan.work.parallel import Parallelism


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Fitting(Shown):
    """A model that fits: on how many devices, and the room that is left."""

    deployment: Deployment
    footprint: Footprint
    context: int
    prices: PriceBook | None = None
    """Where somebody asked what it costs."""
    users: int = 1
    """Requests at once that were asked for."""
    asked: FitAsked | None = None
    """The question, where it was about this device alone."""
    typed: str = ""
    """The model as it was typed there."""
    fewer: Mapping[str, int] = field(default_factory=dict)
    """Other formats in which fewer of this device hold the load, and how many."""

    @property
    def requests(self) -> int:
        """Concurrent requests of ``context`` tokens that the cache holds."""
        return int(np.floor(float(self.footprint.max_batch())))

    @property
    def longest(self) -> float:
        """Tokens that one request may reach; infinite where neither the model nor its memory sets a limit."""
        return self.footprint.max_context()


@dataclass(frozen=True, kw_only=True, eq=False)
class FitOption:
    """One accelerator in one format: what fits there and what it costs, or why nothing does."""

    gpu: str
    quant: str
    """``native`` for the checkpoint's own formats."""
    fitting: Fitting | None = None
    roomier: Fitting | None = None
    """The same GPUs divided so that many more requests fit, each with a longer time per token."""
    reason: str = ""
    short: float = inf
    """Bytes of each GPU that the load lacks, where it is memory that it lacks."""
    refused: InferplanError | None = None
    """The error itself, where it is none of memory."""
    longest: int = 0
    """Tokens of as many requests as were asked for, where they would fit if they were that short."""
    bill: Bill | None = None
    """What one replica costs; ``None`` without a price."""
    tpot: float | None = None
    """Predicted seconds per token with the requests that are held, each at its full length; ``None`` if not asked."""
    basis: str = ""
    """What the constants of that rest on."""

    @property
    def devices(self) -> int:
        """GPUs of one replica. Raises ``ValueError`` where nothing fits."""
        if self.fitting is None:
            raise ValueError(self.reason)
        return self.fitting.deployment.parallel.devices

    @property
    def bought_requests(self) -> int:
        """Requests that all replicas hold for which the GPUs that are paid for suffice."""
        if self.fitting is None or self.bill is None:
            return 0
        return self.fitting.requests * (self.bill.bought // self.devices)


def bill_of(fitting: Fitting, prices: PriceBook) -> Bill | None:
    """What one replica costs; ``None`` without a price."""
    parallel = fitting.deployment.parallel
    tariff = prices.tariff(fitting.deployment.hardware.name, parallel.ranks, parallel.tp)
    return None if tariff is None else tariff.bill(1)


def candidates(model: ModelSpec, named: str, asked: FitAsked) -> list[Request]:
    """Every accelerator on file in each of :func:`quants_tried`. named: the model as it was typed."""
    requests = (replace(asked.request(named, gpu), memory=None) for gpu in names("hardware"))
    return [replace(one, quant=quant) for one in requests for quant in quants_tried(asked, one, model)]


def everywhere(requests: Iterable[Request], asked: FitAsked, tokens: int, prices: PriceBook) -> Iterator[FitOption]:
    """What :func:`fewest_devices` answers for each of some :func:`candidates`.

    tokens: of a request. A memory that was asked for is what all GPUs of a replica have together by their labels.
    """
    least, most = asked.tp or 1, asked.tp or asked.most
    for request in requests:
        gpu, quant = request.gpu, request.quant or NATIVE
        if low := asked.too_low(request):
            yield FitOption(gpu=gpu, quant=quant, reason=low)
            continue
        try:
            if asked.tp is not None:
                load_hardware(gpu).require_one_socket(asked.tp)
                load_engine(request.engine).require_division(Parallelism(tp=asked.tp), gpu)
            fewer = most if asked.memory is None else min(most, _most_within(asked.memory, gpu, least))
            found = fewest_devices(request, tokens, asked.held, fewer, least)
        except InferplanError as error:
            found = error.what
        if isinstance(found, str):
            yield FitOption(gpu=gpu, quant=quant, reason=found)
        else:
            yield FitOption(gpu=gpu, quant=quant, fitting=found, bill=bill_of(found, prices))


def _most_within(memory: str, gpu: str, least: int) -> int:
    """How many of a GPU have no more memory together. Raises ``UsageError`` where that is fewer than ``least``."""
    own = load_hardware(gpu).memory
    if own.labelled is None:
        raise UsageError(f"how much memory {gpu} is sold with is not on file ({own.label})")
    most = int(parse_memory(memory) // (own.labelled * 1e9))
    if most < least:
        raise UsageError(f"{least} x {own.label} is more than {memory}")
    return most


def first_choices(options: Sequence[FitOption]) -> dict[str, FitOption]:
    """The options to look at first, by what they are first in: of each format the cheapest and the one with the most
    requests for the money, of those that a provider sells where there are any; without any price the one on the fewest
    GPUs that holds the most requests."""
    found: dict[str, FitOption] = {}
    for quant in dict.fromkeys(option.quant for option in options):
        fitting = [option for option in options if option.quant == quant and option.fitting is not None]
        priced = [(option, option.bill.per_hour) for option in fitting if option.bill is not None]
        priced = [pair for pair in priced if pair[0].bill is not None and not pair[0].bill.offer.kind] or priced
        if priced:
            found[f"cheapest, {quant}"] = min(priced, key=lambda pair: (pair[1], -pair[0].bought_requests))[0]
            found[f"most requests for the money, {quant}"] = max(
                priced, key=lambda pair: (pair[0].bought_requests / pair[1], -pair[1])
            )[0]
        elif fitting:
            found[f"fewest GPUs, {quant}"] = min(fitting, key=_few)
    return found


def _few(option: FitOption) -> tuple[int, int]:
    return option.devices, -(option.fitting.requests if option.fitting else 0)


def by_price(options: Sequence[FitOption]) -> list[FitOption]:
    """What has a price first, the cheapest before the others; then the fewest GPUs; what does not fit at the end."""

    def place(option: FitOption) -> tuple[float, ...]:
        if option.fitting is None:
            return (2,)
        return (1, *_few(option)) if option.bill is None else (0, option.bill.per_hour, *_few(option))

    return sorted(options, key=lambda option: (*place(option), option.gpu))


def footprint_at(deployment: Deployment, context: int) -> Footprint:
    """The footprint of one request of ``context`` tokens."""
    return Footprint(deployment=deployment, batch=1.0, prompt=float(context), context=float(context))


def fewest_devices(request: Request, context: int, users: int, most: int = 8, least: int = 1) -> Fitting | str:
    """The fewest devices (``least``, twice that, ... up to ``most``) that hold the load, or why none does.

    The load is ``users`` requests of ``context`` tokens.
    """
    reason, stopped = f"does not fit on {most}", ""
    deployment, degree, over = None, least, load_engine(request.engine).over
    while degree <= most:
        parallel = over(degree)
        try:
            if deployment is None or request.flags.backends or request.offload.any:
                # kernels that are chosen may differ with the division, and so does what the host has to hold
                deployment = assemble(replace(request, parallel=parallel))
            deployment = replace(deployment, parallel=parallel)
            footprint = footprint_at(deployment, context)
            if float(footprint.max_batch()) >= users:
                return Fitting(deployment=deployment, footprint=footprint, context=context)
            short = footprint.kv_pool
            reason = f"does not fit on {degree}" + (": the weights alone are too large" if short < 0 else "")
        except InferplanError as error:
            if degree == least:
                reason = error.what
            elif error.what != reason:
                stopped = stopped or f"; {error.what}"
        degree *= 2
    return reason + stopped


def asked_context(model: ModelSpec, tokens: int | None) -> int:
    """The context to fit: 8192 tokens when none is given, or the model's own limit when that is shorter.

    Raises ``UsageError`` for more than the model can attend to.
    """
    limit = model.max_context
    if tokens is None:
        return min(8192, limit or 8192)
    if limit is not None and tokens > limit:
        raise UsageError(
            f"{tokens:,} tokens are more than {model.name} can attend to",
            because=f"its context is {limit:,} tokens",
            hint=f"--context {limit}, or {longer_than(model, tokens)}",
        )
    return tokens


@dataclass(frozen=True, kw_only=True)
class FitAsked:
    """What is to fit. context: tokens of a request, prompt and output; ``None`` as :func:`asked_context`. users: such
    requests at once, or users who think for ``think_time`` seconds between an answer, which takes ``answer_time``, and
    the next request: both are needed then, for memory says nothing of times. people: instead of users; they need an
    answer time too. tp: GPUs of a replica, ``None`` for the fewest that hold it; most: the largest number to try.
    quant, kv, engine, lora, offload: as in ``Request``. memory: of a named GPU as in ``Request``; without one the most
    that all GPUs of a replica may have together, by their labels.
    """

    quant: str | None = ask(
        "--quant",
        Text(),
        "Formats [native; without --gpu, or with a number of GPUs, also the narrower ones that run there].",
        None,
    )
    quality: float | None = field(default=None, metadata=QUALITY)
    kv: str | None = ask(
        "--kv",
        Text(),
        "Format of the KV cache: fp8, under llama.cpp q8_0 [as --quant].",
        None,
        metavar="FORMAT",
    )
    tp: int | None = ask("--tp", Whole(), "Tensor parallelism [the fewest GPUs that fit].", None)
    context: int | None = ask("--context", Whole(), "Tokens per request, prompt and output [8192].", None)
    users: int = ask(
        IN_FLIGHT[0],
        Whole(),
        IN_FLIGHT_HELP,
        1,
        also=IN_FLIGHT[1:],
        shown=True,
    )
    think_time: float | None = ask(
        "--think-time",
        Text(lambda text: parse_think_time(text).mean),
        "From an answer to the user's next request, such as 60s. [0 s]",
        None,
        metavar="TIME",
    )
    answer_time: float | None = ask(
        "--answer-time",
        Quantity("seconds"),
        "How long an answer takes; needed with --think-time and --people [of a --workload at its limits].",
        None,
    )
    timed_by: str = ""
    """Whose the answer time is, where nobody gave it."""
    most: int = ask("--most", Whole(), "Largest number of GPUs to try.", 8, shown=True)
    engine: str = ""
    """Empty: the usual one of the model and each GPU."""
    people: People | None = None
    memory: str | None = ask(
        "--memory",
        Text(),
        "With --gpu: usable memory per device, such as 64GB. Without: total memory of the GPUs, at most.",
        None,
        metavar="SIZE",
    )
    lora: LoraAsked = part(LoraAsked, LoraAsked(), "rank", "modules", "slots", "folder")
    offload: OffloadAsked = part(OffloadAsked, OffloadAsked())

    def __post_init__(self) -> None:
        ThinkTime(mean=self.think_time or 0.0)  # raises for what is none
        if self.think_time and self.answer_time is None:
            raise UsageError(
                "how many users wait at a time depends on the time per answer, and fit counts memory, not time",
                hint="--answer-time 5s, a --workload with limits, or inferplan plan with --people, which finds it",
            )
        if self.people is not None and self.answer_time is None:
            raise UsageError(
                "how many answers people wait for depends on the time per answer, and fit counts memory, not time",
                hint="--answer-time 5s, a --workload with limits, or inferplan plan --people, which finds it",
            )
        if self.answer_time is not None and not 0 < self.answer_time < float("inf"):
            raise UsageError(f"--answer-time is more than 0 s, not {self.answer_time:g} s", hint="--answer-time 5s")

        if self.people is not None:
            self.people.require_one_each(self.answer_time or 0.0)

    @property
    def held(self) -> int:
        """Requests to hold at once: the users who wait, ``N R / (R + Z)`` of them, rounded up; of people ``X R``."""
        if self.people is not None:
            return max(ceil((self.rate or 0.0) * (self.answer_time or 0.0) - 1e-9), 1)
        if not self.think_time or self.answer_time is None:
            return self.users
        return ceil(self.users * self.answer_time / (self.answer_time + self.think_time) - 1e-9)

    @property
    def rate(self) -> float | None:
        """Requests a second of all users, ``N / (R + Z)``; ``None`` where nobody says how long an answer takes."""
        if self.people is not None and self.answer_time is not None:
            return self.people.rate(self.answer_time)
        return None if self.answer_time is None else self.users / (self.answer_time + (self.think_time or 0.0))

    @property
    def within(self) -> str:
        """The limit on the memory of all GPUs together, in words; empty without one."""
        return f" with at most {self.memory} together" if self.memory else ""

    def too_low(self, request: Request) -> str:
        """Why ``quality`` leaves the format of a request out; empty for one that is tried."""
        low = left_out(load_model(request.model), [request.quant], self.quality)
        return "".join(f"keeps too little for --quality {self.quality:g} ({said})" for said in low.values())

    def line(self, model: str, on: str, **changed: Any) -> str:
        """A command that asks the same ``on`` other GPUs, with other words; ``None`` leaves one out.

        Users and their times are said as requests in flight. A number of GPUs takes no ``--most``, and no host memory.
        """
        own = {"engine": self.engine or None} | words_given(replace(self, offload=OffloadAsked()))
        own |= {"in_flight": self.held if self.held > 1 else None, "think_time": None, "answer_time": None}
        told = [
            f"--{name.replace('_', '-')} {_typed(value)}"
            for name, value in (own | ({"most": None} if on else {}) | changed).items()
            if value is not None
        ]
        return " ".join(filter(None, ["inferplan fit", model, on, *told]))

    def request(self, model: str, gpu: str, engine: str = "") -> Request:
        """The deployment to look at; memory needs no constants. engine: instead of the usual one."""
        own = {name: getattr(self, name) for name in ("quant", "memory", "lora", "offload")}
        engine = engine or self.engine or usual_engine(model, gpu, self.quant)
        roles = () if self.kv is None else (("kv", self.kv),)
        return Request(model=model, gpu=gpu, engine=engine, ideal=True, roles=roles, **own)


def narrow_cache(request: Request, kv: str | None) -> str:
    """The cache of 8 bits per element that its engine keeps there; empty where a format was asked for."""
    return "" if kv is not None else load_engine(request.engine).narrow_cache(load_hardware(request.gpu))


def _typed(value: Any) -> str:
    """A value as it is typed."""
    return (
        f"{value:g}" if isinstance(value, float) else quote(",".join(value) if isinstance(value, tuple) else f"{value}")
    )


@dataclass(frozen=True, kw_only=True)
class FitLoad(PeopleAsked):
    """What the requests are of: lengths, and the people who send them."""

    workload: str | None = ask(
        "--workload", Text(), "Mean lengths and pauses by workload: chat, rag, code, agent, ...", None, metavar="NAME"
    )
    sessions: str | None = ask(
        "--sessions", Text(), "Sessions of agents that --people begin, by name or path.", None, metavar="FILE"
    )


def fit_asked(load: FitLoad, **own: Any) -> FitAsked:
    """The question, of which ``own`` are the fields that are given, with the context and the answer time of the load.

    Raises ``UsageError`` for people and requests in flight both, and for a workload beside sessions.
    """
    if load.workload and load.sessions:
        raise UsageError("--workload and --sessions both state the lengths of requests", hint="leave one out")
    if load.sessions and not load.people:
        raise UsageError("--sessions need the people who begin them", hint="--people 200")
    if load.people and own.get("users", 1) != 1:
        raise UsageError("--people and --in-flight both state the load", hint="leave one of them out")
    workload = load_workload(load.workload) if load.workload else None
    people = people_of({**vars(load), "think_time": own.get("think_time")}, workload)
    if workload is not None and workload.prompt and workload.output:
        lengths = parse_lengths(workload.prompt).average, parse_lengths(workload.output).average
        own.setdefault("context", ceil(sum(lengths)))
    if load.sessions:
        calls = sample_of(load_sessions(load.sessions).kinds)
        own.setdefault("context", ceil(float(np.mean(calls.prompt + calls.output))))
    timed = people is not None or own.get("think_time")
    if timed and own.get("answer_time") is None and workload is not None and (time := workload.answer_time()):
        own |= {"answer_time": time, "timed_by": (limits := f"workload {workload.name} at its limits")}
        if people is not None:
            answer = PeopleFigure("answer time", f"{time:.3g} s", limits, "TTFT + (output - 1) TPOT")
            people = replace(people, figures=(*people.figures, answer))
    if people is not None:
        own.pop("think_time", None)
    return FitAsked(people=people, **own)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Fits(Shown):
    """Every accelerator on file in every format that was asked for, what has a price first."""

    model: ModelSpec
    asked: FitAsked
    context: int
    """Tokens of a request."""
    options: Sequence[FitOption]
    term: str
    """On which terms prices are, as it was asked for."""

    @property
    def fitting(self) -> list[FitOption]:
        """Those that hold what was asked for."""
        return [option for option in self.options if option.fitting is not None]


def quants_tried(asked: FitAsked, request: Request, model: ModelSpec) -> tuple[str | None, ...]:
    """The format that was asked for, else those of :func:`inferplan.catalog.assemble.default_quants`."""
    if asked.quant:
        return (request.quant,)
    return default_quants(model, load_hardware(request.gpu), load_engine(request.engine))


def weights_short(footprint: Footprint) -> str:
    """That the weights alone are too large for each GPU, and by how much; empty where they are not."""
    short = f"the weights do not fit, {format_bytes(-footprint.kv_pool, 3)} short on each GPU"
    return short if footprint.kv_pool < 0 else ""


def longest_held(footprint: Footprint, users: int) -> int:
    """Tokens that each of so many requests may reach at once; 0 where the weights leave no room."""
    longest = replace(footprint, batch=float(users)).max_context()
    return 0 if longest == inf else int(longest)


def held_in_words(footprint: Footprint, users: int, tokens: int) -> str:
    """What is held of the load: fewer requests, a shorter one, or none."""
    requests, longest = int(float(footprint.max_batch())), longest_held(footprint, 1)
    if requests or not longest:
        return f"holds {requests:,} of {requests_in_words(users, tokens)}"
    return f"holds one request of up to {longest:,} tokens, not {tokens:,}"


def requests_in_words(count: int, tokens: int) -> str:
    """``"1 request of 8,192 tokens"``."""
    return f"{count:,} request{'' if count == 1 else 's'} of {tokens:,} tokens"


def require_format(asked: FitAsked, model: ModelSpec, gpu: str) -> None:
    """Raise ``UsageError`` for a format that there is not, that the model cannot have, or that keeps too little."""
    require_kept(model, [asked.quant] if asked.quant else [], asked.quality)
    if asked.quant:
        precision_of(asked.request(model.name, gpu), model, load_hardware(gpu))


Counting = Callable[[int], AbstractContextManager[Callable[[int], None] | None]]
"""Given how many there are, a context in which somebody, or nobody, is to be told how many are done."""


def fit_everywhere(
    model: str, asked: FitAsked, prices: PriceBook, counting: Counting = lambda _: nullcontext(None)
) -> Fits:
    """Which accelerators on file hold a model, in the formats of :func:`quants_tried`.

    Raises ``InfeasibleError`` when none does.
    """
    if asked.offload.any:
        raise UsageError("layers on the host need one GPU", hint="--gpu NAME with --gpu-layers, --cpu-moe-layers")
    if asked.engine and asked.tp is not None:
        load_engine(asked.engine).require_division(Parallelism(tp=asked.tp))
    prices.check(names("hardware"))
    spec = load_model(model)
    require_format(asked, spec, names("hardware")[0])
    tokens = asked_context(spec, asked.context)
    if asked.memory:
        parse_memory(asked.memory)
    tried, found = candidates(spec, model, asked), list[FitOption]()
    with counting(len(tried)) as told:
        for option in everywhere(tried, asked, tokens, prices):
            found.append(option)
            if told is not None:
                told(len(found))
    options = by_price(found)
    if not any(option.fitting for option in options):
        on = f"{asked.tp or f'up to {asked.most}'} GPUs{asked.within}"
        raise InfeasibleError(
            f"{spec.name} with {requests_in_words(asked.held, tokens)} fits on no accelerator on file{asked.within}",
            because=f"{len(options):,} combinations of GPU and format were tried, on {on}",
            hint=f"a larger --{'memory' if asked.memory else f'most than {asked.most}'}, less --in-flight, "
            "a narrower --quant, or a shorter --context",
        )
    return Fits(model=spec, asked=asked, context=tokens, options=options, term=prices.asked)


def gpus_that_hold(model: str, asked: FitAsked, prices: PriceBook) -> Iterator[str]:
    """The command that lists the GPUs that hold the load, divided as asked or otherwise; none where none on file does.

    A memory was that of each of the GPUs that were asked about.
    """
    spec = load_model(model)
    for tp in dict.fromkeys((asked.tp, None)):
        own = replace(asked, tp=tp, memory=None, offload=OffloadAsked())
        tried = candidates(spec, model, own)
        if any(one.fitting for one in everywhere(tried, own, asked_context(spec, asked.context), prices)):
            otherwise = "" if tp == asked.tp else f" with another --tp than {asked.tp}"
            yield f"GPUs that hold it{otherwise}: {own.line(model, '')}"
            return


def _other_formats(request: Request, model: ModelSpec, tokens: int, asked: FitAsked) -> dict[str, int]:
    """The other formats in which such devices hold the load, and the fewest that do, or as many as were asked for."""
    least, most = asked.tp or 1, asked.tp or asked.most
    named = default_quants(model, load_hardware(request.gpu), load_engine(request.engine))
    others = [replace(request, quant=quant) for quant in named if quant not in (None, request.quant)]
    held = [(one, fewest_devices(one, tokens, asked.held, most, least)) for one in others if not asked.too_low(one)]
    return {one.quant or NATIVE: on.deployment.parallel.devices for one, on in held if not isinstance(on, str)}


def _beside(request: Request, model: ModelSpec, tokens: int, asked: FitAsked, longest: int) -> Iterator[str]:
    """What holds the load where a degree of tensor parallelism does not, each tried; ``longest``: what that holds."""
    degree = asked.tp or 1
    wider = fewest_devices(request, tokens, asked.held, max(asked.most, 2 * degree), 2 * degree)
    if not isinstance(wider, str):
        yield f"--tp {wider.deployment.parallel.tp}"
    yield from (f"--quant {quant}" for quant in _other_formats(request, model, tokens, replace(asked, tp=degree)))
    if longest:
        yield f"--context {longest}"


def _longest_on(request: Request, tokens: int, asked: FitAsked) -> int:
    """The longest context under ``tokens`` that such devices hold, by bisection; 0 where they hold none."""
    low, high = 0, tokens
    while high - low > 1:
        middle = (low + high) // 2
        fits = not isinstance(fewest_devices(request, middle, asked.held, asked.most), str)
        low, high = (middle, high) if fits else (low, middle)
    return low


def _would_fit(request: Request, model: ModelSpec, tokens: int, asked: FitAsked) -> Iterator[str]:
    """What would fit on such devices: a format, or a shorter context, each tried; and what says what one holds."""
    if held := _other_formats(request, model, tokens, asked):
        yield f"--quant {' or '.join(held)}"
    elif longest := _longest_on(request, tokens, asked):
        yield f"--context {longest}"
    one = asked.line(request.model, f"--have {quote(f'1x-{request.gpu}')}", quant=None)
    yield f"what one holds: {one}"


def fit_on(model: str, gpu: str, asked: FitAsked, prices: PriceBook) -> Fitting:
    """One accelerator: on how many of it a model fits. Raises ``InfeasibleError`` when it does not."""
    spec, hardware = load_model(model), load_hardware(gpu)
    prices.check([hardware.name])
    require_kept(spec, [asked.quant] if asked.quant else [], asked.quality)
    tokens, users, request = asked_context(spec, asked.context), asked.held, asked.request(model, gpu)
    fewer: dict[str, int] = {}
    if asked.tp or asked.offload.computes:
        deployment = assemble(replace(request, parallel=Parallelism(tp=asked.tp or 1)))
    else:
        found = fewest_devices(request, tokens, users, asked.most)
        if isinstance(found, str):
            footprint_at(
                assembled(request, roles=False, held=(float(users), float(tokens))), tokens
            ).max_batch()  # what one device lacks has a hint of its own
            joined = max((link.domain or asked.most + 1 for link in hardware.links), default=1)
            more = ["a larger --most"] if asked.most < joined else []
            raise InfeasibleError(
                f"{spec.name} with {requests_in_words(users, tokens)} does not fit on {hardware.name}",
                because=found,
                hint="; ".join(
                    [*more, *_would_fit(request, spec, tokens, asked), *gpus_that_hold(model, asked, prices)]
                ),
            )
        deployment = found.deployment
        if (own := deployment.parallel.devices) > 1:
            others = _other_formats(request, spec, tokens, asked)
            fewer = {quant: count for quant, count in others.items() if count < own}
            if kv := narrow_cache(request, asked.kv):
                narrow = _other_formats(replace(request, roles=(("kv", kv),)), spec, tokens, asked)
                less = {name: count for name, count in narrow.items() if count < others.get(name, own)}
                fewer |= {f"{name} with --kv {kv}": count for name, count in less.items() if count < own}
    footprint = footprint_at(deployment, tokens)
    fitting = Fitting(
        deployment=deployment,
        footprint=footprint,
        context=tokens,
        prices=prices,
        users=users,
        asked=asked,
        typed=model,
        fewer=fewer,
    )
    if fitting.requests < users:
        if footprint.host is not None:
            raise sides_error(replace(footprint, batch=float(users)), footprint.host, IN_FLIGHT[0])
        longest = longest_held(footprint, users)
        raise InfeasibleError(
            f"{deployment.describe()} does not hold {requests_in_words(users, tokens)}",
            because=weights_short(footprint)
            or f"the cache has {format_bytes(footprint.kv_pool)}: it {held_in_words(footprint, users, tokens)}",
            hint=", or ".join(_beside(request, spec, tokens, asked, longest))
            or ", or ".join(gpus_that_hold(model, asked, prices))
            or "less --in-flight, or a shorter --context",
        )
    return fitting
