"""How much of a work is done: more of it turns up, and its end is reached."""

from __future__ import annotations

from typing import Any

import pytest

from inferplan.cli.programs import run_command
from inferplan.reports.progress import ended
from inferplan.steps import Steps
from tests.cases import for_each

CHAT = {"rate": 5, "prompt": 512, "output": 64, "ttft": "500ms", "tpot": "40ms", "gpu": "h100-sxm,l40s"}


def test_more_steps_turn_up() -> None:
    """By hand: 2 known, then 3 more."""
    told: list[tuple[int, int]] = []
    steps = Steps(lambda done, of: told.append((done, of)))
    steps.more(2)
    steps.step()
    steps.more(3)
    steps.step()
    steps.at(5)
    assert told == [(1, 2), (2, 5), (5, 5)]


def test_turns_that_are_to_come_are_as_long_as_this_one() -> None:
    """By hand: one step, then two turns; while the first has 3 steps, 1 + 2 * 3 are expected, and the second has 4."""
    told: list[tuple[int, int]] = []
    steps = Steps(lambda done, of: told.append((done, of)))
    steps.more(1)
    steps.step()
    for left, count in ((1, 3), (0, 4)):
        turn = steps.turn(left)
        turn.more(count)
        for _ in range(count):
            turn.step()
    assert told == [(1, 1), (2, 7), (3, 7), (4, 7), (5, 8), (6, 8), (7, 8), (8, 8)]


def test_a_work_that_ends_early_is_shown_at_its_end() -> None:
    shown: list[tuple[int, int | None]] = []
    with ended(lambda *what: shown.append(what), None) as bar:
        bar(2, 8)
    with ended(lambda *what: shown.append(what), 3) as bar:
        bar(3)
    with ended(lambda *what: shown.append(what), None) as bar:
        bar(4)
    with pytest.raises(ValueError), ended(lambda *what: shown.append(what), 5) as bar:
        bar(1)
        raise ValueError
    assert shown == [(2, 8), (8, 8), (3, 3), (4, None), (4, 4), (1, 5)]


COMMANDS: list[tuple[str, dict[str, Any]]] = [
    ("fit", {"model": "llama-3.1-8b", "context": "32k"}),
    ("plan", {"model": "llama-3.1-8b", **CHAT}),
    ("plan", {"model": "llama-3.1-8b", **CHAT, "gpu": "2x-l40s", "rate": "most", "quant": "bf16"}),
    ("several", {"service": "cascade"}),
]


@pytest.mark.slow
@for_each("name, options", COMMANDS)
def test_what_a_command_says_of_its_progress_rises_to_its_end(name: str, options: dict[str, Any]) -> None:
    told: list[tuple[int, int | None, str]] = []
    answered = run_command(name, options, lambda *what: told.append(what))
    assert answered.error is None, answered.error
    done = [one[0] for one in told]
    assert done == sorted(set(done)) and len({one[2] for one in told}) == 1
    assert all(of is not None and at <= of for at, of, _ in told)
    assert told[-1][0] == told[-1][1]
    first, of, _ = told[0]
    assert of is not None and first < of / 2
