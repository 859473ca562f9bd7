"""The log of llama.cpp's server: how long each request's prompt and its further tokens took.

``print_timing`` (llama.cpp, ``tools/server``, ``server_slot::print_timings``) says both at the end of a request: the
``prompt eval time`` of so many new tokens runs until the first token of the answer, the ``eval time`` of its tokens
from that one to the last: one step fewer than tokens. ``release`` says how many tokens the slot then holds, of which
the rest came from its cache. Only requests that had the server for themselves are read: with others beside them these
times are those of other steps, too.
"""

from __future__ import annotations

import re

from inferplan.learning.observed import Recorded, StepLoad, figure

KIND = "llama.cpp's log"
_LINE = re.compile(
    r"^.*?(?P<what>launch_slot_|print_timing|release): id +(?P<slot>\d+) \| task +-?\d+ \| *(?P<rest>[^\n]*)$",
    re.MULTILINE,
)
_TIMING = re.compile(r"(?P<prompt>prompt )?eval time = +(?P<ms>[-+.\w]+) ms / +(?P<tokens>[-+.\w]+) (?:tokens|runs)")
_RELEASE = re.compile(r"n_(?:tokens|past) = (\d+), truncated = (\d)")
_CROWDED = "requests beside others"
_NONE = "requests in which a number is none"


def matches(text: str) -> bool:
    """Whether a text holds such lines."""
    return any(one["what"] == "print_timing" for one in _LINE.finditer(text))


class _Slot:
    """A request in its slot: whether others ran beside it, and what was said of it."""

    def __init__(self, alone: bool) -> None:
        self.alone, self.said = alone, dict[str, tuple[float | None, float | None]]()


def read(text: str, where: str) -> Recorded:
    """The prompts of a log, and the means of the steps behind them."""
    found, slots = Recorded.of(KIND, "llama.cpp"), dict[str, _Slot]()
    for match in _LINE.finditer(text):
        name, rest = match["slot"], match["rest"]
        if match["what"] == "launch_slot_":
            if "processing task" in rest:
                for other in slots.values():
                    other.alone = False
                slots[name] = _Slot(alone=not slots)
        elif match["what"] == "print_timing":
            timing = _TIMING.match(rest)
            if timing is not None and name in slots:
                numbers = figure(timing["ms"]), figure(timing["tokens"], whole=True)
                slots[name].said["prompt" if timing["prompt"] else "answer"] = numbers
        elif (slot := slots.pop(name, None)) is not None:
            line = text.count("\n", 0, match.start()) + 1
            _request(slot, rest, f"{where}:{line}", found)
    return found


def _request(slot: _Slot, rest: str, where: str, found: Recorded) -> None:
    """Add a request that has ended."""
    ended = _RELEASE.search(rest)
    spent, new = slot.said.get("prompt", (None, None))
    spent_on_answer, answer = slot.said.get("answer", (None, None))
    if not slot.alone:
        found.skip(_CROWDED)
    elif ended is None or ended[2] != "0" or spent is None or not new or spent_on_answer is None or not answer:
        found.skip(_NONE)
    else:
        past = max(int(ended[1]) - (new + answer - 1.0), 0.0)
        found.keep(spent / 1e3, [(1.0, StepLoad(1.0, new, past))], where)
        if answer > 1.0:
            behind = past + new + answer / 2
            found.keep(spent_on_answer / 1e3 / (answer - 1.0), [(1.0, StepLoad(decodes=1.0, context=behind))], where)
