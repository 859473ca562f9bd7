"""The questions that two checkouts are asked, and where two answers count as different."""

from __future__ import annotations

from inferplan.cli import COMMANDS
from tools.same_answers.compare import differences
from tools.same_answers.questions import questions

NOT_ASKED = {"calibrate", "compile", "learn", "mcp", "measure", "watch", "web"}
"""They need a device, a server, what one recorded, or a browser, or change what answers."""


def test_every_command_is_asked_and_every_run_asks_the_same():
    asked = questions()
    assert asked == questions()
    assert 480 <= len(asked) <= 600
    assert set(COMMANDS) - {question.words[0] for question in asked if question.words} == NOT_ASKED


def test_numbers_differ_from_a_part_in_a_thousand_million():
    old = {"ttft_s": 1.0, "rows": [{"gpu": "l4", "n": 2}], "date": "yesterday", "nan": float("nan")}
    assert list(differences(old, {**old, "ttft_s": 1 + 5e-10, "date": "today"})) == []
    assert list(differences(old, {**old, "ttft_s": 1 + 2e-9})) == [("ttft_s", 1.0, 1 + 2e-9)]
    assert [path for path, _, _ in differences(old, {**old, "rows": [{"gpu": "l4", "n": True}]})] == ["rows[0].n"]


def test_missing_rows_keys_and_other_kinds_differ():
    assert [path for path, _, _ in differences({"a": 1, "b": 2}, {"a": 1, "c": 2})] == ["b", "c"]
    assert [path for path, _, _ in differences({"rows": [1]}, {"rows": [1, 2]})] == ["rows"]
    assert [path for path, _, _ in differences({"code": 0}, {"code": 3})] == ["code"]
    assert [path for path, _, _ in differences({"n": 1}, {"n": "1"})] == ["n"]
