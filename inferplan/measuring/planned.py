"""The load of a plan as a server is sent it: each request at its own time and of its own lengths."""

from __future__ import annotations

from dataclasses import dataclass

from inferplan.measuring.loads import ROOM


@dataclass(frozen=True, kw_only=True)
class PlannedLoad:
    """Requests in the order in which they are sent, with the tokens of each.

    arrivals: seconds from the start at which each is sent, whatever became of those before; empty where ``users`` send,
    who begin at ``starts`` and send the next request ``think`` seconds after an answer (that of the request that was
    answered). heads: which of several shared texts of ``head_tokens`` each prompt begins with; empty without.
    fill: requests at the head that only fill the system, and are in no figure. seconds: how long it is thought to take.
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

    def describe(self) -> str:
        who = f"{self.users} users" if self.users else f"{self.requests / max(self.seconds, 1e-9):.4g} requests/s"
        return f"{who}, {self.requests} requests of the plan's load"
