"""``python -m calibrate.accuracy SHARED --held-out HELD_OUT.csv --out docs/accuracy.md``: write the page.

``HELD_OUT.csv`` is what ``python -m calibrate.serving_fit --held-out`` writes.
"""

from __future__ import annotations

import argparse
from datetime import date
from pathlib import Path

from calibrate.accuracy.page import document
from inferplan.catalog.files import config_root


def _command() -> None:
    what = "Write docs/accuracy.md from the reference data and the shipped constants."
    parser = argparse.ArgumentParser(prog="python -m calibrate.accuracy", description=what)
    parser.add_argument("shared", type=Path, help="folder with measured/ and reference/")
    parser.add_argument("--held-out", type=Path, required=True, help="what calibrate.serving_fit --held-out wrote")
    parser.add_argument("--out", type=Path, default=config_root().parent / "docs" / "accuracy.md")
    parser.add_argument("--date", default=date.today().isoformat())
    parser.add_argument("--every", type=int, default=1, help="price every n-th row and static batch")
    options = parser.parse_args()
    options.out.write_text(document(options.shared, options.held_out, options.date, options.every), encoding="utf-8")


if __name__ == "__main__":
    _command()
