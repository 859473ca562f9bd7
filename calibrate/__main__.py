"""``python -m calibrate`` is ``inferplan calibrate``; ``python -m calibrate fit-tables`` fits kernel tables."""

from __future__ import annotations

import sys

from inferplan.cli import main


def run() -> None:
    """Run the command that the arguments name; every error and exit code is the command's."""
    if sys.argv[1:2] == ["fit-tables"]:
        from calibrate.tables.command import fit_tables

        del sys.argv[1]
        fit_tables()
    sys.argv.insert(1, "calibrate")
    main()


if __name__ == "__main__":
    run()
