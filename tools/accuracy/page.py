"""``docs/accuracy.md``: every figure in it is computed here, from the reference data and the shipped constants.

``python -m tools.accuracy SHARED --unseen UNSEEN.csv --out docs/accuracy.md`` with the file that
``python -m tools.fitting serving --unseen`` writes.
"""

from __future__ import annotations

from pathlib import Path

from inferplan.validation.importers import read_file
from inferplan.validation.run import Pricing, price_rows
from tools.accuracy.catalogue import constants_section, kernel_section
from tools.accuracy.closed_loop import ClosedLoop, closed_loop_section, with_bands
from tools.accuracy.memory import memory_section
from tools.accuracy.open_loop import open_loop_section
from tools.accuracy.static_batches import static_section
from tools.accuracy.throughput import throughput_section
from tools.fitting.priced import priced_file
from tools.fitting.unseen import read_unseen


def document(shared: Path, unseen: Path, today: str, every: int = 1) -> str:
    """The page. every: of static batches and the roofline's rows each so many-th."""
    prose = (Path(__file__).parent / "notes.md").read_text(encoding="utf-8")
    rows = shared / "measured" / "serving.csv"
    serving = ClosedLoop(
        unseen=with_bands(read_unseen(unseen)),
        scripted=with_bands(read_unseen(unseen, "scripted")),
        shipped=priced_file(rows),
        roofline=price_rows(read_file(rows, {})[1][::every], Pricing(ideal=True)),
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
