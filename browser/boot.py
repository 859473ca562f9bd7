"""What runs inside the browser: one command line at a time, answered by the commands themselves."""

from __future__ import annotations

import io
import json
import pickle
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferplan.errors import InferplanError

HOME = Path(__file__).parent
_SPECS = HOME / "specs.pickle"
HERE = (
    *("estimate", "fit", "compare", "cost", "explain", "recipe", "simulate", "emit"),
    *("models", "gpus", "formats", "show", "prices", "settings", "sweep"),
)
"""Commands that run in the browser."""
INSTALL = "install inferplan to run it (docs/install.md)"


class _Packed(dict[tuple[str, str], Any]):
    """Specs as they were checked when this was built; each is unpacked when it is first asked for."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        with _SPECS.open("rb") as file:
            places = pickle.load(file)
            self.begin = file.tell()
        self.places = {(str(root / name), kind): where for (name, kind), where in places.items()}

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or key in self.places

    def __missing__(self, key: tuple[str, str]) -> Any:
        start, length = self.places[key]
        with _SPECS.open("rb") as file:
            file.seek(self.begin + start)
            self[key] = [], pickle.loads(file.read(length))
        return self[key]


def prepare() -> None:
    """Import what the commands need and answer one question of each kind: all that ends up in the snapshot."""
    from inferplan import cli, decimals
    from inferplan.catalog import file_cache
    from inferplan.catalog.files import config_root

    file_cache._held = _Packed(config_root())
    file_cache._is_current = lambda states: True
    file_cache._folder = lambda: None  # type: ignore[assignment]
    decimals.FEW = sys.maxsize  # arrays in plain Python are slower than repr
    usual = cli.refusal
    cli.refusal = lambda error: _refusal(error) or usual(error)
    for line in (HOME / "usual.txt").read_text().splitlines():
        said = json.loads(answer(line))
        if said["code"]:
            raise RuntimeError(f"{line}\n{said['stderr']}")


def _refusal(error: Exception) -> InferplanError | None:
    """What is said of an error that comes from where this runs; ``None`` of others."""
    from inferplan.errors import UsageError

    if isinstance(error, (ImportError, NotImplementedError)):
        return UsageError("this question needs more than the browser has", because=str(error), hint=INSTALL)
    if isinstance(error, (MemoryError, RecursionError)):
        return UsageError("this question is too large for the browser", hint=INSTALL)
    return None


def answer(line: str) -> str:
    """What a command line prints, as JSON: ``stdout``, ``stderr`` and ``code``, its exit code."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = _run(line)
    return json.dumps({"stdout": out.getvalue(), "stderr": err.getvalue(), "code": code})


def _run(line: str) -> int:
    from inferplan.cli import COMMANDS, main

    try:
        words = shlex.split(line.replace("\\\n", " "))
    except ValueError as error:
        return _say(f"error: {error}")
    while words and words[0] in ("$", "inferplan"):
        words.pop(0)
    if words and words[0] in COMMANDS and words[0] not in HERE and not {"--help", "-h"} & set(words):
        return _say(f"error: inferplan {words[0]} does not run in the browser\nhint: {INSTALL}")
    sys.argv = ["inferplan", *words]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


def _say(text: str) -> int:
    print(text, file=sys.stderr)
    return 2
