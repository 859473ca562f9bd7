"""``python -m calibrate`` is ``inferplan calibrate``; with the name of one of its commands first, that command."""

from __future__ import annotations

import sys
from importlib import import_module

from inferplan.cli import main

COMMANDS = {
    "fit-tables": ("calibrate.tables.command", "fit_tables"),
    "fit-mechanisms": ("calibrate.tables.command", "fit_mechanisms"),
    "fit-releases": ("calibrate.tables.command", "fit_releases"),
    "fit-relatives": ("calibrate.tables.relatives", "fit_relatives"),
    "fit-libraries": ("calibrate.tables.libraries", "fit_libraries"),
    "fit-llama": ("calibrate.published.command", "fit_llama"),
    "fit-served": ("calibrate.published.command", "fit_served"),
}
"""Where the commands are that make the files of ``configs`` from kernel tables, published figures and serving rows."""


def run() -> None:
    """Run the command that the arguments name; every error and exit code is the command's."""
    if len(sys.argv) > 1 and sys.argv[1] in COMMANDS:
        module, name = COMMANDS[sys.argv.pop(1)]
        getattr(import_module(module), name)()
    sys.argv.insert(1, "calibrate")
    main()


if __name__ == "__main__":
    run()
