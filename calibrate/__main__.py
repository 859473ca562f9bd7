"""``python -m calibrate`` is ``inferplan calibrate``; with ``fit-tables`` or ``fit-releases`` it fits tables."""

from __future__ import annotations

import sys

from inferplan.cli import main


def run() -> None:
    """Run the command that the arguments name; every error and exit code is the command's."""
    if sys.argv[1:2] in (["fit-tables"], ["fit-releases"]):
        from calibrate.tables.command import fit_releases, fit_tables

        (fit_tables if sys.argv.pop(1) == "fit-tables" else fit_releases)()
    sys.argv.insert(1, "calibrate")
    main()


if __name__ == "__main__":
    run()
