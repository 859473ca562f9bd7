"""Every shipped spec, read and checked: for the wheel and for the folder of the browser."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

READING = ("estimate llama-3.1-8b --gpu m3-max", "emit vllm llama-3.1-8b --gpu h100-sxm", "prices")
"""Commands that read one file at least of every kind."""


def read_all(lines: Iterable[str] = ()) -> dict[tuple[str, str], tuple[list[Path], Any]]:
    """By file and kind what each was made into, behind the files that it was read from. lines: further commands.

    Raises ``RuntimeError`` where one of them fails.
    """
    from click.testing import CliRunner

    from inferplan.catalog import file_cache
    from inferplan.catalog.files import config_root, load_hardware, load_model, names, spec_of
    from inferplan.cli import cli

    for line in (*lines, *READING):
        result = CliRunner().invoke(cli, line.split(), obj={})
        if result.exit_code:
            raise RuntimeError(f"inferplan {line} fails: {result.output}") from result.exception
    for name in names("models"):
        load_model(name)
    for name in names("hardware"):
        load_hardware(name)
    held = file_cache._held
    kinds = {(Path(path).parent, kind): type(made) for (path, kind), (_, made) in held.items()}
    for (folder, kind), spec in kinds.items():
        if kind == spec.__name__ and folder != config_root():
            for path in sorted(folder.glob("*.yaml")):
                spec_of(path, spec)
    return {key: ([Path(state[0]) for state in states], made) for key, (states, made) in held.items()}
