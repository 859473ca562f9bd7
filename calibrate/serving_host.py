"""What a step costs the host of vLLM before 0.14, which schedules it when the one before is done, from a closed loop.

``python -m calibrate.serving_host FILE.csv`` prints the constants of ``step`` of that version in
``configs/engines/vllm.yaml``, and how far off those of the other divisions are on each: what the host does costs the
same on two, four and eight devices, where kernels do not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from calibrate.published.host import HostFit
from calibrate.serving_fit import usable
from inferplan.devices.engine import HostCost
from inferplan.estimate.deployment import Deployment
from inferplan.serving.simulator import Options, simulate
from inferplan.validation.deploy import deployment_of
from inferplan.validation.importers import read_file
from inferplan.validation.predict import flags_of, traffic_of
from inferplan.validation.rows import Run


@dataclass(frozen=True, kw_only=True)
class Interval:
    """The mean seconds between the tokens of a row."""

    run: Run
    deployment: Deployment
    seconds: float

    @property
    def group(self) -> str:
        """What is left out together."""
        return f"tp {self.run.tp}"

    def at(self, host: float | None, sequence: float) -> float:
        """Seconds that are predicted with these seconds of a step (``None``: the shared ones) and of a sequence."""
        cost = HostCost.model_construct(source="fit", host=host, sequence=sequence)
        engine = self.deployment.engine.model_copy(update={"step": cost})
        traffic, options = traffic_of(self.run, 0.0), Options(warmup=self.run.warmup)
        served = replace(self.deployment, engine=engine)
        return float(np.mean(simulate(served, traffic, flags_of(self.run), options).tpot))


def intervals(path: Path) -> list[Interval]:
    """The rows of vLLM before 0.14 that a fit may see."""
    found = []
    for row in usable(read_file(path, {})[1]):
        assert row.run is not None and row.measured.tpot is not None
        deployment = deployment_of(row.run)[0]
        if row.run.engine == "vllm" and deployment.engine.defaults.until == "0.14":
            found.append(Interval(run=row.run, deployment=deployment, seconds=row.measured.tpot))
    return found


def main(path: Path, show: Callable[[str], object] = print) -> None:
    """Fit, and show what came out."""
    show(HostFit.of(intervals(path), ("host", "sequence")).report())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
