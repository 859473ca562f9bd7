"""What is asked of a server: loads of so many users and tokens, in order, and the bounds that the whole run keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from inferplan.errors import UsageError
from inferplan.fields import Real, Text, Whole, ask
from inferplan.lists import parse_counts, parse_values
from inferplan.measuring.planned import ROOM, PlannedLoad, open_loop
from inferplan.units import parse_number


class Sent(Protocol):
    """What a load takes of the bounds."""

    @property
    def requests(self) -> int: ...

    @property
    def tokens(self) -> int:
        """Of all requests, at the most."""

    @property
    def request_tokens(self) -> int:
        """Of the longest request, at the most."""

    @property
    def seconds(self) -> float:
        """How long it takes at the least, as far as that is known."""


@dataclass(frozen=True, kw_only=True)
class UsersLoad:
    """A closed loop: ``users`` at a time, each sending its next request when it has the reply to the one before.

    prompt, output: tokens of a request; requests: of all users together; all users begin at once. head_tokens: of each
    prompt those that are the same text in all.
    """

    users: int
    prompt: int
    output: int
    requests: int
    head_tokens: int = 0

    @property
    def heads(self) -> tuple[int, ...]:
        """Which of the shared texts each prompt begins with: there is one, or none."""
        return (0,) * self.requests if self.head_tokens else ()

    @property
    def repeated(self) -> float:
        """The share of a prompt that is shared text."""
        return self.head_tokens / self.prompt

    @property
    def tokens(self) -> int:
        """Prompt and output tokens of all its requests, at the most."""
        return self.requests * self.request_tokens

    @property
    def request_tokens(self) -> int:
        """Tokens of one request, at the most."""
        return round(self.prompt * (1 + ROOM)) + self.output

    @property
    def seconds(self) -> float:
        """How long it is thought to take: nobody knows."""
        return 0.0

    def describe(self) -> str:
        who = "1 user" if self.users == 1 else f"{self.users} users"
        return f"{who}, {self.prompt} tokens in, {self.output} out"


_MOST_USERS = 50_000
"""Users at a time: each has a connection, and a client has a port for each, of 65,535."""


def _users(text: str) -> list[int]:
    counts = parse_counts(text, "--concurrency")
    if max(counts) > _MOST_USERS:
        raise UsageError(
            f"--concurrency {max(counts):,} is more than one client has connections for",
            because=f"{_MOST_USERS:,} are the most",
        )
    return counts


def _minutes(text: str) -> float:
    """Minutes as seconds."""
    try:
        seconds = parse_number(text) * 60.0
    except ValueError as error:
        raise UsageError(f"--max-minutes: {error}") from None
    if not 0 < seconds < inf:
        raise UsageError(f"--max-minutes must be more than 0, not {text}")
    return seconds


def _rates(text: str) -> list[float]:
    """Requests/s, a comma list."""
    try:
        rates = [parse_number(part) for part in parse_values(text)]
    except ValueError as error:
        raise UsageError(f"--rate: {error}", hint="1,2,4") from None
    if not rates or not all(_LEAST_RATE <= rate <= 1 / _LEAST_RATE for rate in rates):
        raise UsageError(
            f"--rate {text or 'of nothing'} is no list of rates",
            because=f"each is {_LEAST_RATE:g} to {1 / _LEAST_RATE:g} requests/s",
            hint="1,2,4",
        )
    return rates


_LEAST_RATE = 1e-3
"""Requests/s: of fewer nobody waits for the second one."""


@dataclass(frozen=True, kw_only=True)
class LoadChoice:
    """Which loads: one user over prompt ``lengths``, then ``concurrency`` and ``rates`` at prompts of ``shared_prompt``
    tokens.

    single_requests: requests of a load of one user; rounds: requests of each user where there are several;
    rate_requests: requests of an open loop. repeated: the share of each prompt that is the same text in all prompts of
    its load, which the server's prefix cache holds since the warm-up.
    """

    lengths: Sequence[int] = ask(
        "--lengths",
        Text(lambda text: parse_counts(text, "--lengths")),
        "Prompt tokens of a single user's requests [128,1k,4k,8k].",
        (128, 1000, 4000, 8000),
        metavar="COUNTS",
    )
    concurrency: Sequence[int] = ask(
        "--concurrency", Text(_users), "Users at a time [1,4,16,64].", (1, 4, 16, 64), metavar="COUNTS"
    )
    rates: Sequence[float] = ask(
        "--rate", Text(_rates), "Requests/s of open loops with Poisson arrivals, such as 1,2,4 [none].", (),
        metavar="RATES",
    )  # fmt: skip
    shared_prompt: int = ask(
        "--prompt", Whole(), "Prompt tokens of every load of --concurrency and --rate.", 1000, shown=True
    )
    output: int = ask("--output", Whole(2), "Output tokens per request.", 128, shown=True)
    single_requests: int = ask("--single-requests", Whole(), "Requests per load of one user.", 5, shown=True)
    rounds: int = ask("--rounds", Whole(), "Requests per user in a load of several users.", 3, shown=True)
    rate_requests: int = ask("--rate-requests", Whole(2), "Requests per load of --rate.", 30, shown=True)
    repeated: float = ask(
        "--prefix-hit-rate",
        Real(0, 0.99),
        "Share of each prompt that all prompts of a load have in common, for the server's prefix cache.",
        0.0,
        shown=True,
    )

    def loads(self) -> list[UsersLoad | PlannedLoad]:
        """Every load once: one of each kind, so that a run that is cut short says something of all; then the others,
        single users by length, several by their number, open loops by their rate."""
        alone = [self._users(1, length) for length in sorted(self.lengths)]
        beside = [self._users(users, self.shared_prompt) for users in sorted(self.concurrency)]
        crowds = [one for one in beside if one.users > 1]
        head = self._head(self.shared_prompt)
        rates = [
            open_loop(rate, self.rate_requests, self.shared_prompt, self.output, head) for rate in sorted(self.rates)
        ]
        return list(dict.fromkeys([*alone[:1], *crowds[:1], *rates[:1], *alone, *beside, *rates]))

    def _users(self, users: int, prompt: int) -> UsersLoad:
        requests = self.single_requests if users == 1 else self.rounds * users
        return UsersLoad(
            users=users, prompt=prompt, output=self.output, requests=requests, head_tokens=self._head(prompt)
        )

    def _head(self, prompt: int) -> int:
        """Tokens of a prompt that are in all: less than all of them."""
        return int(self.repeated * prompt)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What the run never exceeds, warm-up included: requests, seconds, tokens (prompts and outputs)."""

    requests: int = ask("--max-requests", Whole(), "Most requests to send.", 400, shown=True)
    seconds: float = ask("--max-minutes", Text(_minutes), "Stop after this time [10].", 600.0, metavar="MINUTES")
    tokens: int = ask(
        "--max-tokens", Whole(), "Most prompt and output tokens, all requests together.", 1_000_000, shown=True
    )


@dataclass(kw_only=True)
class Budget:
    """What is left of the bounds. Time is kept by the session, which ends requests that are still running."""

    bounds: Bounds
    requests: int = field(default=0)
    tokens: int = field(default=0)

    def refuses(self, load: Sent, warmup: int) -> str:
        """Why a load with so many further requests for warm-up would break a bound; empty where it would not."""
        requests = load.requests + warmup
        if self.requests + requests > self.bounds.requests:
            return f"{requests} requests more than --max-requests {self.bounds.requests} leaves"
        tokens = load.tokens + warmup * load.request_tokens
        if self.tokens + tokens > self.bounds.tokens:
            return f"{tokens} tokens more than --max-tokens {self.bounds.tokens} leaves"
        if load.seconds > self.bounds.seconds:
            return f"it takes {load.seconds / 60:.3g} minutes, and --max-minutes is {self.bounds.seconds / 60:g}"
        return ""

    def admits(self, requests: int, tokens: int) -> bool:
        """Whether the bounds leave so many."""
        return self.requests + requests <= self.bounds.requests and self.tokens + tokens <= self.bounds.tokens

    def spend(self, requests: int, tokens: int) -> None:
        """Count requests that are about to be sent, and their tokens at the most.

        Raises ``UsageError`` where a bound does not admit them.
        """
        if not self.admits(requests, tokens):
            raise UsageError(
                "the bounds are used up before anything is measured",
                because=f"--max-requests {self.bounds.requests}, --max-tokens {self.bounds.tokens}; learning how the "
                f"server wants to be asked took {self.requests} requests",
            )
        self.requests += requests
        self.tokens += tokens


def too_long(load: Sent, context: int | None) -> str:
    """Why a load does not fit the server's longest sequence (tokens; ``None``: not said); empty where it does."""
    if context is None or load.request_tokens <= context:
        return ""
    return f"up to {load.request_tokens} tokens of a request, and the server takes {context}"
