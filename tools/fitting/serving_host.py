"""What a sequence costs the host of vLLM in a step, before and since its steps are scheduled ahead.

``python -m tools.fitting serving-host CLOSED.csv OPEN.csv`` prints the constants of ``step`` in
``configs/engines/vllm.yaml``: of versions before 0.14, which schedule a step when the one before is done, from the rows
of a closed loop, and of those since from stages of an open loop under capacity, which hold up to 128 sequences. What
the host does costs the same on any number of devices and for any model, where kernels do not: what is left out to judge
the fit is a division of the first, a model of the second.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from inferplan.estimate.deployment import Deployment
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.validation.deploy import deployment_of
from inferplan.validation.importers import read_file
from inferplan.validation.predict import row_flags, row_traffic
from inferplan.validation.rows import Row, Run
from tools.fitting.published.host import HostFit, with_host
from tools.fitting.serving import usable


@dataclass(frozen=True, kw_only=True)
class Interval:
    """The mean seconds between the tokens of a row."""

    run: Run
    deployment: Deployment
    seconds: float
    group: str
    """What is left out together."""

    def at(self, host: float | None, sequence: float) -> float:
        """Seconds that are predicted with these seconds of a step (``None``: the shared ones) and of a sequence."""
        traffic, options = row_traffic(self.run, 0.0), Options(warmup=self.run.warmup)
        served = with_host(self.deployment, host, sequence)
        return float(np.mean(simulate(served, traffic, row_flags(self.run), options).tpot))


def closed_loop(path: Path) -> list[Interval]:
    """The rows of vLLM before 0.14 that a fit may see."""
    found = [_interval(row, f"tp {row.run.tp}") for row in usable(read_file(path, {})[1]) if row.run is not None]
    return [one for one in found if one.run.engine == "vllm" and one.deployment.engine.defaults.until == "0.14"]


def open_loop(path: Path) -> list[Interval]:
    """The stages of vLLM since 0.14 that kept up with their arrivals."""
    rows = [row for row in read_file(path, {})[1] if row.run is not None and not overloaded(row)]
    found = [_interval(row, row.run.model) for row in rows if row.run is not None]
    return [one for one in found if one.run.engine == "vllm" and not one.deployment.engine.defaults.until]


def overloaded(row: Row) -> bool:
    """Whether a stage fell behind its arrivals: requests failed, or waited ten seconds for their first token."""
    return float(row.cells.get("failed") or 0) > 0 or (row.measured.ttft or 0) > 10


def _interval(row: Row, group: str) -> Interval:
    assert row.run is not None and row.measured.tpot is not None
    return Interval(run=row.run, deployment=deployment_of(row.run)[0], seconds=row.measured.tpot, group=group)


@click.command("serving-host")
@click.argument("closed", type=click.Path(path_type=Path))
@click.argument("opened", type=click.Path(path_type=Path))
def command(closed: Path, opened: Path) -> None:
    """Fit the seconds of vLLM's host to the closed-loop rows of CLOSED and the open-loop rows of OPENED; print them."""
    click.echo(f"before 0.14\n{HostFit.of(closed_loop(closed), ('host', 'sequence')).report()}")
    click.echo(f"since 0.14\n{HostFit.of(open_loop(opened), ('sequence',)).report()}")
