"""The tool that plants mistakes: its changes, what it leaves alone, names, how a mutant is put in place and judged."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tools.mutants import source
from tools.mutants.judge import Chosen, forks
from tools.mutants.operators import changes
from tools.mutants.record import MOST_TESTS, _spread, judges
from tools.mutants.source import loaded, mutants_of, plant


def made_of(text: str) -> set[tuple[str, str]]:
    """(operator, changed code) of every change of a function's body."""
    function = ast.parse(dedent(text)).body[0]
    assert isinstance(function, ast.stmt)
    return {(change.operator, ast.unparse(change.new)) for change in changes(function)}


def body(text: str) -> set[tuple[str, str]]:
    return made_of(f"def f(a, b, c):\n    {text}\n")


CHANGED = {
    "return a < b": {("flipped", "a >= b"), ("relaxed", "a <= b")},
    "return a in b": {("flipped", "a not in b")},
    "return a < b == c": {("flipped", "a >= b == c"), ("relaxed", "a <= b == c"), ("flipped", "a < b != c")},
    "return a + b": {("exchanged", "a - b"), ("term", "a"), ("term", "b")},
    "return a / b": {("exchanged", "a * b"), ("term", "a")},
    "return -a": {("term", "a")},
    "a += b": {("exchanged", "a -= b"), ("term", "pass")},
    "return 3": {("constant", "4")},
    "return 0.5": {("constant", "1.0")},
    "return a < MOST": {("flipped", "a >= MOST"), ("relaxed", "a <= MOST"), ("constant", "MOST * 2")},
    "return g(a, b, k=c)": {("arguments", "g(b, a, k=c)")},
    "return a and b and c": {("operand", "b and c"), ("operand", "a and c"), ("operand", "a and b")},
    "return g(k=MOST)": {("constant", "MOST * 2")},
    "return not a": {("operand", "a")},
    "return np.minimum(a, b)": {("opposite", "np.maximum")},
    "return a if b else c": {("branch", "False"), ("branch", "True")},
    "return [a for a in b if c]": {("branch", "True")},
    "if a: raise ValueError(b + 1)": {("branch", "False")},
}
UNCHANGED = [
    '"""About 3 + 4."""',
    "a: Literal[3] = b",
    "return a + 'of' + b",
    "return f'{a + 1}'",
    "log.info(a, b + 1)",
    "return a + 1e-9",
    "return round(a, digits=3)",
    "assert a < b",
    "return isinstance(a, b)",
    "return g(a, a)",
    "return g(*a, b)",
    "return g(a, float)",
    "return g(a, 'words')",
    "return True",
]


def test_each_operator_by_its_changes() -> None:
    wrong = {text: body(text) for text, expected in CHANGED.items() if body(text) != expected}
    assert not wrong


def test_words_annotations_and_tolerances_are_left_alone() -> None:
    wrong = {text: body(text) for text in UNCHANGED if body(text)}
    assert not wrong
    assert not made_of("@cached(3)\ndef f(a: Literal[3] = 4, *, b: int = 5) -> Literal[6]: return a")


TEXT = '''
class Box:
    """A box of 3."""

    @property
    def half(self):
        def inner(a):
            return a < 2

        return self.size / 2 if inner(self.size) else 7

    def __repr__(self):
        return self.size * 3
'''


def names(text: str) -> list[str]:
    return [mutant.name for mutant in mutants_of("a.b", text)]


def test_a_name_outlives_moved_lines_and_other_functions() -> None:
    moved = "import numpy\n\n\ndef other(a):\n    return a < 3\n" + TEXT.replace("A box of 3.", "Words.\n\n    More.")
    assert "a.b:Box.half#flipped-1" in names(TEXT)
    assert not [name for name in names(TEXT) if "__repr__" in name]
    assert names(TEXT) == [name for name in names(moved) if ":other#" not in name]
    digests = [{m.digest for m in mutants_of("a.b", text) if "Box" in m.name} for text in (TEXT, moved)]
    assert digests[0] == digests[1]
    assert digests[0] != {mutant.digest for mutant in mutants_of("a.b", TEXT.replace("7", "8"))}


def test_names_are_unique_in_our_own_modules() -> None:
    found = [mutant.name for name in ("inferplan.work.ops", "inferplan.units") for mutant in mutants_of(name)]
    assert len(found) == len(set(found)) > 500


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module ``shelf`` of its own folder, loaded, with a second holder of its function."""
    path = tmp_path / "shelf.py"
    path.write_text("def wide(a, b):\n    return a + 2 * b\n\n\nTABLE = {'wide': wide}\n")
    monkeypatch.setattr(source, "ROOT", tmp_path)
    source.path_of.cache_clear()
    spec = importlib.util.spec_from_file_location("shelf", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "shelf", module)
    spec.loader.exec_module(module)
    return path


def test_a_mistake_reaches_every_holder_and_no_file(planted: Path) -> None:
    before = planted.read_text()
    module = sys.modules["shelf"]
    found = {mutant.name: mutant for mutant in mutants_of("shelf")}
    held = module.TABLE["wide"]
    assert held(5, 7) == 19
    plant(found["shelf:wide#exchanged-1"], loaded())
    assert (held(5, 7), module.wide(5, 7)) == (-9, -9)
    plant(found["shelf:wide#term-2"], loaded())  # of the honest source again: one mistake at a time
    assert held(5, 7) == 14
    assert planted.read_text() == before
    with pytest.raises(LookupError):
        plant(found["shelf:wide#term-1"], {})


def work(key: str) -> str:
    while key == "spins":
        pass
    return str(1 // 0) if key == "dies" else key * 2


def test_forks_answer_and_end_at_their_limit() -> None:
    found = {key: judged.word for key, judged in forks(["ab", "spins", "dies"], work, 2, 0.0)}
    assert found == {"ab": "abab", "spins": "", "dies": ""}


def test_tests_of_files_about_the_module_judge_first() -> None:
    text = "\n\ndef f(a):\n    b = 1\n    return a < b\n"
    mutant = next(one for one in mutants_of("m", text) if one.operator == "flipped")
    about = {"m:f": {"1": [0, 1], "2": [1, 2]}}
    record = {"digest": "", "tests": [["t::a", 0.1], ["t::b", 0.2], ["t::c", 0.3]], "lines": about}
    wide = {"digest": "", "tests": [["u::a", 0.4]], "lines": {"m:f": {"2": [0]}, "n:g": {"1": [0]}}}
    none = {"digest": "", "tests": [["v::a", 0.4]], "lines": {"m:f": {"1": [0]}}}
    found = judges(mutant, {"u": wide, "t": record, "v": none})
    assert found == [(0.3, "t::c"), (0.2, "t::b"), (0.4, "u::a")]


def test_tests_of_a_line_are_held_from_the_narrowest_to_widest() -> None:
    assert _spread([3, 5, 8]) == [3, 5, 8]
    held = _spread(list(range(61)))
    assert held == list(range(0, 61, 4)) and len(held) == MOST_TESTS
    assert _spread(list(range(1000)))[-1] == 999  # a loop over many cases runs most lines


def test_only_chosen_tests_run_in_their_order() -> None:
    class Item:
        def __init__(self, nodeid: str) -> None:
            self.nodeid = nodeid

    items = [Item("t::a"), Item("t::b"), Item("t::c")]
    Chosen(["t::c", "t::gone", "t::a"]).pytest_collection_modifyitems(items)  # type: ignore[arg-type]
    assert [item.nodeid for item in items] == ["t::c", "t::a"]
