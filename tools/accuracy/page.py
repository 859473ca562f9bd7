"""``docs/accuracy.md``: every figure in it is computed here, from the reference data and the shipped constants.

``python -m tools.accuracy SHARED --held-out HELD_OUT.csv --out docs/accuracy.md`` with the file that
``python -m tools.fitting serving --held-out`` writes.
"""

from __future__ import annotations

from pathlib import Path

from inferplan.validation.importers import read_file
from inferplan.validation.run import Pricing, price_rows
from tools.accuracy.catalogue import constants_section, kernel_section
from tools.accuracy.closed_loop import ClosedLoop, closed_loop_section, read_held_out, with_bands
from tools.accuracy.memory import memory_section
from tools.accuracy.open_loop import open_loop_section
from tools.accuracy.static_batches import static_section
from tools.accuracy.throughput import throughput_section
from tools.fitting.serving import is_kept_apart


def document(shared: Path, held_out: Path, today: str, every: int = 1) -> str:
    """The page."""
    prose = (Path(__file__).parent / "notes.md").read_text(encoding="utf-8")
    every_row = read_file(shared / "measured" / "serving.csv", {})[1]
    rows = [row for row in every_row if not is_kept_apart(row)]
    apart = [row for row in every_row if is_kept_apart(row)]
    serving = ClosedLoop(
        held_out=with_bands(read_held_out(held_out)),
        shipped=price_rows(rows[::every], Pricing()),
        roofline=price_rows(rows[::every], Pricing(ideal=True)),
        apart=price_rows(apart[::every], Pricing()),
    )
    head, causes = prose.split("<!-- figures -->\n")
    return "\n".join(
        [
            head.replace("DATE", today).rstrip() + "\n",
            closed_loop_section(serving),
            constants_section(),
            open_loop_section(shared / "measured" / "serving_open_loop.csv"),
            static_section(shared / "reference" / "truths.csv", every),
            throughput_section(shared / "reference" / "truths.csv", every),
            kernel_section(),
            memory_section(),
            causes.rstrip() + "\n",
        ]
    )
