"""The browser's files print what the command line prints, at 500 points, in this Python: ``test_site.py`` has the
interpreter of the browser."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from browser import build
from browser.standin import checked as stand_in
from inferplan import checked
from inferplan.catalog import file_cache
from tests.browser.points import differing, points, printed

ROOT = Path(__file__).parents[2]


def said_by(files: Path, lines: list[str], folder: Path) -> list[dict[str, Any]]:
    """What a process prints that has the browser's files alone."""
    (folder / "lines.json").write_text(json.dumps(lines))
    command = [
        sys.executable,
        "-m",
        "tests.browser.here",
        str(files),
        *(str(folder / f"{n}.json") for n in ("lines", "said")),
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads((folder / "said.json").read_text())
    return found


@pytest.mark.parametrize("seed", range(10))
def test_fifty_points_print_the_same(seed: int, files: Path, tmp_path: Path) -> None:
    asked = points(seed, answered=45, refused=5)
    assert len(asked) == 50
    assert not (wrong := differing(asked, said_by(files, list(asked), tmp_path))), "\n".join(wrong)


def test_a_grid_of_hundreds_of_points_prints_the_same(files: Path, tmp_path: Path) -> None:
    """More numbers than those from which numpy writes them."""
    line = "inferplan sweep llama-3.1-8b --gpu h100-sxm --batch 1-300 --executor serial --format csv"
    said = said_by(files, [line], tmp_path)
    assert said[0]["stdout"].count("\n") == 301
    assert not differing({line: printed(line)}, said)


REFUSED = {
    "plan llama-3.1-8b --rate 1": "inferplan plan does not run in the browser",
    "inferplan web": "inferplan web does not run in the browser",
    "estimate llama-3.1-8b --gpu h100-sxm --batch 'x": "No closing quotation",
    "plot roofline llama-3.1-8b --gpu h100-sxm": "does not run in the browser",
}


def test_what_does_not_run_there_says_so_and_how_to_install(files: Path, tmp_path: Path) -> None:
    for (line, what), said in zip(REFUSED.items(), said_by(files, list(REFUSED), tmp_path), strict=True):
        assert said["code"] == 2 and what in said["stderr"], (line, said)
        assert ("docs/install.md" in said["stderr"]) == ("does not run" in what)


def test_specs_are_those_that_pydantic_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every shipped file, and of files read for each question that the build asks."""
    usual, compared, inside = checked.checked, 0, False

    def both(spec: type[Any], data: Any, *, strict: bool | None = None, into: Any = None) -> Any:
        nonlocal compared, inside
        if inside or into is not None or isinstance(data, spec):
            return usual(spec, data, strict=strict, into=into)
        inside = True
        try:
            made = usual(spec, data, strict=strict)
            monkeypatch.setattr(checked, "checked", stand_in.checked)
            other = stand_in.checked(spec, data)
        finally:
            inside = False
            monkeypatch.setattr(checked, "checked", both)
        assert repr(made) == repr(other), spec
        compared += 1
        return made

    monkeypatch.setattr(checked, "checked", both)
    monkeypatch.setattr(file_cache, "_held", {})
    build.packed_specs()
    assert compared > 500
