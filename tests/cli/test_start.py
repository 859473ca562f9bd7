"""A short start: what a command does not use is not loaded, and what is put off is the real thing when it is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import for_each


def output(code: str) -> str:
    """What a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_an_estimate_loads_no_metadata_of_packages_and_no_closed_form() -> None:
    code = (
        "import sys\nfrom inferplan.cli import main\n"
        "sys.argv = ['inferplan', 'estimate', 'llama-3.1-8b', '--gpu', 'h100-sxm']\n"
        "main()\n"
        "print(sorted({'email', 'zipfile', 'inferplan.serving.steady', 'rich'} & set(sys.modules)))\n"
    )
    assert output(code).splitlines()[-1] == "[]"


def test_a_plan_checks_no_spec_anew_and_asks_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the files that it reads are kept."""
    monkeypatch.setenv("INFERPLAN_CACHE", str(tmp_path))
    asked = "plan llama-3.2-1b --gpu l4 --quant native --most 1 --aggregated --rate 1 --prompt 64 --output 8 --ttft 5s"
    code = (
        f"import sys\nfrom inferplan.cli import main\nsys.argv = ['inferplan', *{asked!r}.split()]\nmain()\n"
        "print(sorted({'asyncio', 'pydantic', 'inferplan.validation.run'} & set(sys.modules)))\n"
    )
    output(code)
    assert output(code).splitlines()[-1] == "[]"


@for_each(
    "use",
    [
        "import importlib.metadata\nprint(importlib.metadata.version('numpy'))",
        "from importlib.metadata import version\nprint(version('numpy'))",
        "from importlib import metadata\nprint(metadata.version('numpy'))",
        "from importlib.metadata import entry_points\nentry_points(group='x')\n"
        "import importlib.metadata\nprint(importlib.metadata.version('numpy'))",
        "import importlib.metadata as known\nprint(known.version('numpy'), end='')\n"
        "import importlib.metadata\nassert importlib.metadata.__file__\nprint()",
    ],
)
def test_metadata_is_there_for_whoever_wants_it(use: str) -> None:
    import numpy as np

    assert output(f"from inferplan.cli.start import quick_start\nquick_start()\n{use}").strip() == np.__version__


def test_the_package_itself_is_a_command() -> None:
    def run(word: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "inferplan", word], check=False, capture_output=True, text=True)

    assert run("--version").stdout.startswith("inferplan, version ")
    wrong = run("estimat")
    assert wrong.returncode == 2 and wrong.stderr.startswith("error: ")


VALUES = (
    "import pickle\n"
    "from dataclasses import FrozenInstanceError, replace\n"
    "from inferplan.traffic.requests import Lengths\n"
    "from inferplan.work.step import Segment\n"
    "one, same = Segment(batch=2, new=3, past=5), Segment(batch=2, new=3, past=5)\n"
    "print(one, one == same, one == replace(one, new=4), hash(one) == hash(same), pickle.loads(pickle.dumps(one)))\n"
    "def said(ask):\n"
    "    try:\n"
    "        ask()\n"
    "    except Exception as error:\n"
    "        return type(error).__name__, str(error)\n"
    "print(said(lambda: setattr(one, 'new', 1)), said(lambda: delattr(one, 'new')), said(lambda: Segment(batch=1)))\n"
    "print(Segment.__init__.__qualname__, Lengths(mean=7), said(lambda: Lengths(mean=-1)))\n"
)


def test_dataclasses_are_those_of_python() -> None:
    """What a value prints, equals, refuses and is called, with methods that are compiled when called and without."""
    plain = output(VALUES)
    assert output(f"from inferplan.cli.start import quick_start\nquick_start()\n{VALUES}") == plain
    assert "FrozenInstanceError" in plain and "missing" in plain and "Segment.__init__" in plain


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="Python compiles the methods of a class together")
def test_an_estimate_compiles_few_methods_of_dataclasses() -> None:
    """Of 615 that it makes; each costs 0.07 ms."""
    code = (
        "import dataclasses, sys\nknown, count = dataclasses._create_fn, [0]\n"
        "def counted(*parts, **more):\n"
        "    count[0] += str((more.get('globals') or {}).get('__name__')).startswith('inferplan')\n"
        "    return known(*parts, **more)\n"
        "counted.__module__ = 'dataclasses'\ndataclasses._create_fn = counted\n"
        "from inferplan.cli import main\n"
        "sys.argv = ['inferplan', 'estimate', 'llama-3.1-8b', '--gpu', 'h100-sxm']\nmain()\nprint(count[0])\n"
    )
    assert int(output(code).splitlines()[-1]) < 200
