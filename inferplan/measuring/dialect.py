"""How one server wants to be asked: which of the two APIs, and which options it takes."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Literal

Api = Literal["completions", "chat"]
PATHS: dict[Api, str] = {"completions": "/completions", "chat": "/chat/completions"}


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The options of a request.

    usage: ask for token counts at the end of a stream; ignore_eos: have as many tokens as asked for; greedy: state a
    temperature of 0; limit: the name of the option that says how many tokens.
    """

    api: Api
    usage: bool = True
    ignore_eos: bool = True
    greedy: bool = True
    limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"

    @property
    def path(self) -> str:
        return PATHS[self.api]

    def body(self, model: str, prompt: str, output: int) -> bytes:
        """A request for ``output`` tokens after ``prompt``."""
        fields: dict[str, Any] = {"model": model, self.limit: output, "stream": True}
        if self.api == "chat":
            fields["messages"] = [{"role": "user", "content": prompt}]
        else:
            fields["prompt"] = prompt
        if self.usage:
            fields["stream_options"] = {"include_usage": True}
        if self.ignore_eos:
            fields["ignore_eos"] = True
        if self.greedy:
            fields["temperature"] = 0
        return json.dumps(fields).encode()

    def without(self, complaint: str) -> Dialect | None:
        """How to ask a server that refused this as a bad request; ``None`` when nothing is left to leave out.

        The option that the complaint names is changed; where it names none, the least usual of those that are left.
        """
        if "max_completion_tokens" in complaint and self.limit == "max_tokens":
            return replace(self, limit="max_completion_tokens")
        options = {"ignore_eos": "ignore_eos", "usage": "stream_options", "greedy": "temperature"}
        left = [field for field in options if getattr(self, field)]
        named = [field for field in left if options[field] in complaint]
        refused: dict[str, Any] = {(named or left)[0]: False} if left else {}
        return replace(self, **refused) if refused else None

    @property
    def left_out(self) -> list[str]:
        """The options that the server does not take, for people."""
        names = {"ignore_eos": self.ignore_eos, "stream_options": self.usage, "temperature": self.greedy}
        return [name for name, taken in names.items() if not taken]
