"""``python -m tools.accuracy SHARED --unseen UNSEEN.csv``: write docs/accuracy.md.

``UNSEEN.csv`` is what ``python -m tools.fitting serving --unseen`` writes. ``python -m tools.accuracy scale-out
SHARED`` writes docs/accuracy-scale-out.md alone, ``python -m tools.accuracy devices SHARED``
docs/accuracy-devices.md, ``python -m tools.accuracy parts SHARED`` docs/accuracy-parts.md; ``python -m
tools.accuracy anchors UNSEEN.csv`` prints what measured runs of a system are worth. ``python -m tools.accuracy
encoders SHARED`` writes docs/accuracy-encoders.md. ``python -m tools.accuracy percentiles`` writes
docs/accuracy-percentiles.md from tests/fixtures/late_tokens.csv. ``python -m tools.accuracy cpu`` measures this CPU and
writes docs/accuracy-cpu.md; ``python -m tools.accuracy llama-cpp`` a server of llama.cpp on it, and writes its part.
"""

from __future__ import annotations

import argparse
import sys
from datetime import date
from pathlib import Path

from inferplan.catalog.assemble import anchor_process
from inferplan.catalog.files import config_root
from inferplan.reports.validation import rows_csv
from tools.accuracy.anchors import anchors_section, bands, systems
from tools.accuracy.closed_loop import without_suspects
from tools.accuracy.devices import devices_page
from tools.accuracy.encoders import encoders_page
from tools.accuracy.page import document
from tools.accuracy.parts.page import parts_page
from tools.accuracy.percentiles import percentiles_page
from tools.accuracy.scale_out import scale_out_page
from tools.fitting.late import ROWS
from tools.fitting.unseen import read_unseen


def _parser(page: str, what: str, prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=what)
    parser.add_argument("shared", type=Path, help="folder with measured/ and reference/")
    parser.add_argument("--out", type=Path, default=config_root().parent / "docs" / page)
    parser.add_argument("--date", default=date.today().isoformat())
    return parser


def _accuracy() -> None:
    what = "Write docs/accuracy.md from the reference data and the shipped constants."
    parser = _parser("accuracy.md", what, "python -m tools.accuracy")
    parser.add_argument("--unseen", type=Path, required=True, help="what tools.fitting serving --unseen wrote")
    parser.add_argument("--every", type=int, default=1, help="of static batches and the roofline's rows every n-th")
    options = parser.parse_args()
    options.out.write_text(document(options.shared, options.unseen, options.date, options.every), encoding="utf-8")


def _scale_out() -> None:
    what = "Write docs/accuracy-scale-out.md: DeepSeek-R1 at scale, predicted against measured."
    parser = _parser("accuracy-scale-out.md", what, "python -m tools.accuracy scale-out")
    parser.add_argument("--rows", type=Path, help="write every row with its prediction")
    options = parser.parse_args(sys.argv[2:])
    page, scored = scale_out_page(options.shared, options.date, _told)
    options.out.write_text(page, encoding="utf-8")
    if options.rows:
        options.rows.write_text(rows_csv(scored), encoding="utf-8")


def _devices() -> None:
    what = "Write docs/accuracy-devices.md: devices without tables of kernels, predicted against published rows."
    parser = _parser("accuracy-devices.md", what, "python -m tools.accuracy devices")
    options = parser.parse_args(sys.argv[2:])
    options.out.write_text(devices_page(options.shared, options.date), encoding="utf-8")


def _parts() -> None:
    what = "Write docs/accuracy-parts.md: each part of a price against public rows."
    options = _parser("accuracy-parts.md", what, "python -m tools.accuracy parts").parse_args(sys.argv[2:])
    options.out.write_text(parts_page(options.shared, options.date), encoding="utf-8")


def _encoders() -> None:
    what = "Write docs/accuracy-encoders.md: attention both ways, predicted against measured."
    options = _parser("accuracy-encoders.md", what, "python -m tools.accuracy encoders").parse_args(sys.argv[2:])
    options.out.write_text(encoders_page(options.shared, options.date), encoding="utf-8")


def _percentiles() -> None:
    what = "Write docs/accuracy-percentiles.md: percentiles of latencies, predicted against measured."
    parser = argparse.ArgumentParser(prog="python -m tools.accuracy percentiles", description=what)
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--out", type=Path, default=config_root().parent / "docs" / "accuracy-percentiles.md")
    parser.add_argument("--date", default=date.today().isoformat())
    options = parser.parse_args(sys.argv[2:])
    options.out.write_text(percentiles_page(options.rows, options.date), encoding="utf-8")


def _anchors() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.accuracy anchors", description=_anchors_help)
    parser.add_argument("unseen", type=Path, help="what tools.fitting serving --unseen wrote")
    scored = without_suspects(read_unseen(parser.parse_args(sys.argv[2:]).unseen))
    process = anchor_process()
    print(anchors_section(scored))
    for metric, (low, high) in bands(systems(scored, process), process).items():
        print(f"{metric}: band: [{low:.2f}, {high:.2f}]")


_anchors_help = "Print what measured runs of a system are worth, and the bands for configs/anchors.yaml."


def _cpu() -> None:
    from tools.accuracy.cpu_page import main  # torch is needed for this page only

    main(sys.argv[2:])


def _llama_cpp() -> None:
    from tools.accuracy.llama_cpp.page import main  # torch is needed for this page only

    main(sys.argv[2:])


def _told(done: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{done} rows")


if __name__ == "__main__":
    pages = {
        "scale-out": _scale_out,
        "devices": _devices,
        "encoders": _encoders,
        "parts": _parts,
        "percentiles": _percentiles,
        "anchors": _anchors,
        "cpu": _cpu,
        "llama-cpp": _llama_cpp,
    }
    pages.get(" ".join(sys.argv[1:2]), _accuracy)()
