"""Requests at times and of lengths of their own: the load of a plan as a server is sent it, and an open loop."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ROOM = 0.05
"""By what share a prompt may turn out longer than it was meant to be; sizes come from counts of other prompts."""


@dataclass(frozen=True, kw_only=True)
class PlannedLoad:
    """Requests in the order in which they are sent, with the tokens of each.

    arrivals: seconds from the start at which each is sent, whatever became of those before; empty where ``users`` send,
    who begin at ``starts`` and send the next request ``think`` seconds after an answer (that of the request that was
    answered). heads: which of several shared texts of ``head_tokens`` each prompt begins with; empty without.
    fill: requests at the head that only fill the system, and are in no figure. seconds: how long it is thought to take.
    rate: requests/s that the arrivals were drawn with, where they are no plan's.
    """

    prompts: tuple[int, ...]
    outputs: tuple[int, ...]
    arrivals: tuple[float, ...] = ()
    users: int = 0
    starts: tuple[float, ...] = ()
    think: tuple[float, ...] = ()
    heads: tuple[int, ...] = ()
    head_tokens: int = 0
    fill: int = 0
    seconds: float = 0.0
    rate: float = 0.0

    @property
    def requests(self) -> int:
        return len(self.prompts)

    @property
    def prompt(self) -> int:
        """Tokens of the shortest prompt."""
        return min(self.prompts) + self.head_tokens

    @property
    def output(self) -> int:
        """Tokens of the longest reply."""
        return max(self.outputs)

    @property
    def request_tokens(self) -> int:
        """Tokens of the longest request, at the most."""
        return max(self._tokens(prompt, output) for prompt, output in zip(self.prompts, self.outputs))

    @property
    def tokens(self) -> int:
        """Prompt and output tokens of all requests, at the most."""
        return sum(self._tokens(prompt, output) for prompt, output in zip(self.prompts, self.outputs))

    def _tokens(self, prompt: int, output: int) -> int:
        return round((prompt + self.head_tokens) * (1 + ROOM)) + output

    @property
    def requests_per_s(self) -> float:
        """Of an open loop: as drawn, else as they come."""
        return self.rate or self.requests / max(self.seconds, 1e-9)

    @property
    def repeated(self) -> float:
        """The share of the prompts' tokens that is shared text."""
        return self.head_tokens * self.requests / (sum(self.prompts) + self.head_tokens * self.requests)

    def describe(self) -> str:
        if self.rate:
            return f"{self.rate:g} requests/s, {self.prompt} tokens in, {self.output} out"
        who = f"{self.users} users" if self.users else f"{self.requests_per_s:.4g} requests/s"
        return f"{who}, {self.requests} requests of the plan's load"


def open_loop(rate: float, requests: int, prompt: int, output: int, head_tokens: int = 0) -> PlannedLoad:
    """``requests`` of ``prompt`` and ``output`` tokens at Poisson arrivals of ``rate`` requests/s; ``head_tokens`` of
    each prompt are one text.

    The arrivals are the same in every run, and those with which `validate` predicts a row of this rate and number.
    """
    arrivals = np.cumsum(np.random.default_rng(0).gamma(1.0, 1.0 / rate, requests))
    begun = arrivals - arrivals[0]
    return PlannedLoad(
        prompts=(prompt - head_tokens,) * requests,
        outputs=(output,) * requests,
        arrivals=tuple(begun.tolist()),
        heads=(0,) * requests if head_tokens else (),
        head_tokens=head_tokens,
        seconds=float(begun[-1]),
        rate=rate,
    )
