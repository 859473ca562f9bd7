"""What a step costs the host of an engine, from published batches and maximum throughput of many sequences.

``python -m tools.fitting host TRUTHS.csv`` prints the constants of ``step`` in ``configs/engines``: of
TensorRT-LLM seconds a sequence (its batches hold hundreds to thousands), of vLLM of 2024 seconds a step and a sequence.
A run's time is as good as linear in both, so that each row is simulated at two or three of them; they are fitted in the
logarithm, soft-L1, every row alike, and judged on the GPU that was left out.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import click
import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from inferplan.devices.engine import HostCost
from inferplan.errors import InferplanError
from inferplan.estimate.deployment import Deployment
from inferplan.serving.flags import Flags
from inferplan.serving.simulator import simulate
from inferplan.traffic.requests import Traffic
from inferplan.units import Array
from inferplan.validation.deploy import deployment_of
from tools.fitting.published.batches import ENGINES, batch_traffic, static_run
from tools.fitting.published.peaks import read_peaks

_PROBE = {"host": 2e-3, "sequence": 2e-5}
"""Seconds at which a row is simulated beside none."""
_SOFT = 0.05
"""Share of the time from which an error counts less than squared."""


class Timed(Protocol):
    """Something that was timed, and what is predicted for it."""

    @property
    def group(self) -> str: ...

    @property
    def seconds(self) -> float: ...

    def at(self, host: float | None, sequence: float) -> float: ...


def with_host(deployment: Deployment, host: float | None, sequence: float) -> Deployment:
    """The deployment with these seconds of a step (``None``: the shared ones) and of a sequence."""
    cost = HostCost.model_construct(source="fit", host=host, sequence=sequence)
    return replace(deployment, engine=deployment.engine.model_copy(update={"step": cost}))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run that was timed: all of ``traffic`` at once, in ``seconds``."""

    deployment: Deployment
    traffic: Traffic
    flags: Flags
    seconds: float

    @property
    def group(self) -> str:
        """What is left out together."""
        return self.deployment.hardware.name

    def at(self, host: float | None, sequence: float) -> float:
        """Seconds that are predicted with these seconds of a step (``None``: the shared ones) and of a sequence."""
        return float(simulate(with_host(self.deployment, host, sequence), self.traffic, self.flags).duration)


def peak_cases(path: Path) -> list[Case]:
    """Maximum throughput of TensorRT-LLM, but over PCIe."""
    peaks = [peak for peak in read_peaks(path) if not peak.over_pcie]
    return [
        Case(deployment=deployment_of(p.run)[0], traffic=p.traffic(), flags=p.flags(), seconds=p.seconds) for p in peaks
    ]


def batch_cases(path: Path, framework: str = "vLLM") -> list[Case]:
    """Batches of Argonne's table on NVIDIA's GPUs that can be run."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["id"].startswith("ARG-") and row["inputs"] == framework]
    found = []
    for row in rows:
        if "MI300X" in row["hardware"]:
            continue
        run = static_run(row, ENGINES[framework])
        try:
            deployment = deployment_of(run)[0]
        except InferplanError:
            continue
        traffic, seconds = batch_traffic(run), float(row["value"])
        found.append(Case(deployment=deployment, traffic=traffic, flags=Flags(), seconds=seconds))
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class HostFit:
    """Predicted seconds of cases, linear in some of ``names``, and what was measured."""

    names: Sequence[str]
    groups: npt.NDArray[np.str_]
    """What is left out together, by case."""
    bare: Array
    slopes: Array
    measured: Array

    @classmethod
    def of(cls, cases: Sequence[Timed], names: Sequence[str]) -> HostFit:
        """Simulate the cases without what is unknown, and with the probe of each."""
        host = 0.0 if "host" in names else None
        costs: dict[str, tuple[float | None, float]] = {
            "host": (_PROBE["host"], 0.0),
            "sequence": (host, _PROBE["sequence"]),
        }
        bare = np.array([case.at(host, 0.0) for case in cases])
        probed = [[case.at(*costs[name]) for case in cases] for name in names]
        return cls(
            names=names,
            groups=np.array([case.group for case in cases]),
            bare=bare,
            slopes=np.array([(np.array(there) - bare) / _PROBE[name] for name, there in zip(names, probed)]).T,
            measured=np.array([case.seconds for case in cases]),
        )

    def predicted(self, values: Sequence[float]) -> Array:
        """Seconds of the cases."""
        seconds: Array = self.bare + self.slopes @ np.asarray(values)
        return seconds

    def fitted(self, chosen: npt.NDArray[np.bool_]) -> list[float]:
        """The constants that fit the ``chosen`` rows best."""

        def error(values: Array) -> Array:
            logs: Array = np.log(self.predicted(list(values)) / self.measured)
            return logs[chosen]

        start = [_PROBE[name] for name in self.names]
        found = least_squares(error, start, x_scale=start, bounds=(0.0, np.inf), loss="soft_l1", f_scale=_SOFT)
        return [float(value) for value in found.x]

    def report(self) -> str:
        """The constants from all rows, and from those of the other groups with the errors on each."""
        everything = np.ones(len(self.measured), dtype=bool)
        lines = [self._line("all", self.fitted(everything), everything)]
        for group in sorted(set(self.groups)):
            mine = self.groups == group
            lines.append(self._line(f"{group} left out", self.fitted(~mine), mine))
        return "\n".join(lines)

    def _line(self, name: str, values: Sequence[float], rows: npt.NDArray[np.bool_]) -> str:
        off = self.predicted(values)[rows] / self.measured[rows] - 1.0
        constants = ", ".join(f"{key} {value * 1e6:.3g} us" for key, value in zip(self.names, values))
        size = np.abs(off)
        errors = f"median {np.median(size):.1%}, MAPE {np.mean(size):.1%}, bias {np.mean(off):+.1%}"
        return f"{name:24s} {constants:36s} {len(off):4d} rows: seconds {errors}"


@click.command("host")
@click.argument("file", type=click.Path(path_type=Path))
def command(file: Path) -> None:
    """Fit the seconds of the hosts of TensorRT-LLM and vLLM to the published rows of FILE, and print them."""
    click.echo(f"trtllm\n{HostFit.of(peak_cases(file), ('sequence',)).report()}")
    click.echo(f"vllm\n{HostFit.of(batch_cases(file), ('host', 'sequence')).report()}")
