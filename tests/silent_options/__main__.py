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
    count, silent = Counter[str](), 0
    best: dict[tuple[str, str], bool] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        place(Path(folder))
        for line in lines(given.commands):
            found = list(scan(line))
            count.update(one.how or "silent" for one in found)
            print(f"{line}: {len(found)} options", flush=True)
            for one in found:
                if not one.how or (given.refused and one.how == "refused"):
                    print(f"    {one.how or 'SILENT'} {one.option} {' '.join(one.why.split())[:200]}", flush=True)
            silent += sum(not one.how for one in found)
            for one in found:
                key = command_of(line.split())[0], one.option
                best[key] = best.get(key, False) or one.how in ("changed", "noted")
    print(", ".join(f"{number:,} {how}" for how, number in count.most_common()))
    never = [f"{command} {option}" for (command, option), shown in best.items() if not shown]
    print(f"{len(best):,} options of {len({name for name, _ in best})} commands; refused on every line: {len(never)}")
    for one in never if given.refused else []:
        print(f"    {one}")
    return bool(silent)


if __name__ == "__main__":
    sys.exit(main())
