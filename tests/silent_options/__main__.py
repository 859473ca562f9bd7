"""``python -m tests.silent_options [COMMAND ...] [--refused]``: every option of every line of bases.txt, or of some."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

import tests.conftest  # noqa: F401  (the environment that tests run in)
from tests.silent_options.files import place
from tests.silent_options.scan import command_of, lines, scan


def main() -> int:
    read = argparse.ArgumentParser(prog="python -m tests.silent_options", description=__doc__)
    read.add_argument("commands", nargs="*", help="lines that begin so")
    read.add_argument("--refused", action="store_true", help="print the options that are refused, too, with the error")
    given = read.parse_args()
    count = Counter[str]()
    heard: dict[tuple[str, str], set[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        place(Path(folder))
        for line in lines(given.commands):
            found = list(scan(line))
            count.update(one.how or "silent" for one in found)
            print(f"{line}: {len(found)} options", flush=True)
            for one in found:
                heard.setdefault((command_of(line.split())[0], one.option), set()).add(one.how)
                if not one.how or (given.refused and one.how == "refused"):
                    print(f"    {one.how or 'SILENT'} {one.option} {' '.join(one.why.split())[:200]}", flush=True)
    print(", ".join(f"{number:,} {how}" for how, number in count.most_common()))
    silent = [key for key, how in heard.items() if "" in how or ("unbound" in how and not how & {"changed", "noted"})]
    never = [key for key, how in heard.items() if how == {"refused"}]
    print(f"{len(heard):,} options of {len({name for name, _ in heard})} commands: {len(silent)} silent")
    for what, those in (("silent", silent), ("refused on every line", never if given.refused else [])):
        for command, option in those:
            print(f"    {what}: {command} {option}")
    return bool(silent)


if __name__ == "__main__":
    sys.exit(main())
