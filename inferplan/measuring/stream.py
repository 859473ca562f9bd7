"""A streamed reply: server-sent events as they come in, and what they say of tokens and their times."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

LONGEST_LINE = 1 << 24
"""Bytes without a line's end after which a stream is no stream of events."""


MOST_TOKENS = 10**12
"""A count of tokens above which it is none."""


class StreamError(Exception):
    """A stream that is not what the API promises."""


def parse_json(text: str | bytes) -> Any:
    """JSON of a server; raises ``ValueError`` for what is none, or is nested too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


class EventLines:
    """Bytes to the payloads of events, whatever the pieces they come in: the ``data:`` lines of each, joined, and lines
    ended by CR, LF or both (HTML standard, 9.2.6, interpreting an event stream). Comments and other fields are left
    out: servers send them to keep a connection open. A line that is whole by itself counts as soon as it is there, as
    some servers leave out the empty line after it.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._event: bytes | None = None
        self._after_cr = False

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that are complete now. Raises ``StreamError`` for a line without an end."""
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) + len(self._event or b"") > LONGEST_LINE:
            raise StreamError(f"a line of more than {LONGEST_LINE} bytes")
        found: list[bytes] = []
        for number, line in enumerate(lines):
            if not line:
                found += self.end()
            elif line.startswith(b"data:"):
                own = line[5:].strip()
                self._event = own if self._event is None else self._event + b"\n" + own
                ended = number + 1 < len(lines) and not lines[number + 1]
                if not ended and _whole(self._event):
                    found += self.end()
        return found

    def end(self) -> list[bytes]:
        """The payload of an event that nothing more comes to."""
        event, self._event = self._event, None
        return [] if event is None else [event]


def _whole(payload: bytes) -> bool:
    """Whether a payload is one without further lines."""
    if payload == b"[DONE]":
        return True
    try:
        return payload.endswith(b"}") and isinstance(parse_json(payload), dict)
    except ValueError:
        return False


@dataclass(kw_only=True)
class Transcript:
    """What the events of one reply said. Times are seconds of ``time.perf_counter``.

    times: of the pieces of text, one for all events that were read at once. prompt, output, cached: tokens from
    ``usage``; cached: those of the prompt that came from a prefix cache. finish: why the reply ended. most: pieces
    after which it is longer than was asked for; a server that does not stop would break every bound of a run.
    """

    times: list[float] = field(default_factory=list)
    blank: int = 0
    """Of the first pieces, those without text."""
    prompt: int | None = None
    output: int | None = None
    cached: int | None = None
    finish: str | None = None
    done: bool = False
    most: int | None = None

    @property
    def complete(self) -> bool:
        """Whether the server ended it, and not the connection."""
        return self.done or self.finish is not None

    def add(self, payload: bytes, now: float) -> None:
        """Take one event that was read at ``now``. Raises ``StreamError`` for an error event or what is no event."""
        if payload == b"[DONE]":
            self.done = True
            return
        try:
            event = parse_json(payload)
        except ValueError:
            text = payload.decode("utf-8", errors="replace")  # whole: a key in it is hidden before it is cut
            raise StreamError(f"an event that is not JSON: {text}") from None
        if not isinstance(event, dict):
            raise StreamError("an event that is not a JSON object")
        if event.get("error"):
            raise StreamError(f"the server says: {error_text(event)}")
        self._usage(event.get("usage"))
        choices = event.get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            if _holds_token(choices[0]):
                self.blank += self.blank == len(self.times) and not _text(choices[0])
                self.times.append(now)
                if self.most is not None and len(self.times) > self.most:
                    raise StreamError(f"more than {self.most} pieces came, and the reply does not end where it was to")
            self.finish = choices[0].get("finish_reason") or self.finish

    @property
    def token_times(self) -> tuple[float, ...]:
        """When its pieces came, without those first ones that hold no token: where there are more pieces than tokens by
        the server's count, blank ones at the begin only open the stream."""
        more = 0 if self.output is None else len(self.times) - self.output
        return tuple(self.times[min(max(more, 0), self.blank) :])

    def _usage(self, usage: Any) -> None:
        """Counts of the last usage that has them; some servers repeat it with every event."""
        if not isinstance(usage, dict):
            return
        self.prompt = _count(usage.get("prompt_tokens")) or self.prompt
        self.output = _count(usage.get("completion_tokens")) or self.output
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            cached = _count(details.get("cached_tokens"))
            self.cached = self.cached if cached is None else cached


def _holds_token(choice: dict[str, Any]) -> bool:
    """Whether an event brings a token: text, or a token without text (a special one, half a character).

    The first event of a chat, which states the role alone, and the last, which states the end alone, bring none.
    """
    delta = choice.get("delta")
    if isinstance(delta, dict):
        if any(delta.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls")):
            return True
        return delta.get("content") == "" and "role" not in delta and choice.get("finish_reason") is None
    text = choice.get("text")
    return isinstance(text, str) and bool(text or choice.get("finish_reason") is None)


def _text(choice: dict[str, Any]) -> bool:
    """Whether an event brings something to read, or a call of a tool."""
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return any(delta.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls"))
    return bool(choice.get("text"))


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS else None


def error_text(body: Any) -> str:
    """What an error object of the API says, in one line; empty where it says nothing."""
    found = body
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(name):
            found = found[name]
    if isinstance(found, list):
        found = "; ".join(str(one.get("msg", one)) if isinstance(one, dict) else str(one) for one in found)
    return " ".join(str(found).split()) if isinstance(found, (str, int)) else ""
