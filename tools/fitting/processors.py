"""``python -m tools.fitting processors``: what llama.cpp's kernels reach on processors, from published speeds of models
that they run alone, and the errors of the rows that no constant is taken from."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from math import exp, log
from statistics import fmean, median

import click

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import config_root, load_hardware
from inferplan.devices.hardware import HardwareSpec
from inferplan.estimate.batch import Estimate
from inferplan.estimate.load import StaticLoad
from tools.fitting.one_stream import OneStream, stated


@dataclass(frozen=True, kw_only=True)
class Run(OneStream):
    """One on a processor."""

    hardware: HardwareSpec
    fitted: bool

    @property
    def case(self) -> str:
        """In words."""
        what = "prompts of" if self.of_prompt else "tokens behind"
        return f"{self.model}, {self.quant}, {self.hardware.product}, {what} {self.prompt:,.0f}"

    def estimate(self) -> Estimate:
        """As it is priced."""
        request = Request(model=self.model, gpu=self.hardware.name, quant=self.quant, engine="llama.cpp", memory="1TB")
        found = assemble(request, hardware_loader=lambda _: self.hardware)
        return Estimate(deployment=found, load=StaticLoad(prompt=self.prompt, output=self.output))

    @property
    def flop(self) -> dict[str, float]:
        """By kernel of matmuls the FLOP of a core and cycle at which the prompt takes as long as it was measured, where
        all that is on file is off by one factor."""
        prefill, cycles = self.estimate().prefill, self.hardware.core_cycles
        assert cycles is not None  # every row has cores and clock
        costs = [cost for cost in prefill.costs if cost.op.kernel in ("matmul", "grouped_matmul")]
        seconds = sum(float(cost.total) for cost in costs)
        factor = seconds / (self.prompt / self.measured - (float(prefill.time) - seconds))
        kernels = {cost.op.kernel for cost in costs}
        work = {kernel: [cost for cost in costs if cost.op.kernel == kernel] for kernel in kernels}
        return {
            kernel: factor
            * sum(float(cost.work.flop) * float(cost.op.count) for cost in found)
            / sum(float(cost.total) for cost in found)
            / cycles
            for kernel, found in work.items()
        }


def runs() -> list[Run]:
    """Every row of ``tests/benchmarks/processors.csv``."""
    path = config_root().parent / "tests" / "benchmarks" / "processors.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return [_run(row) for row in csv.DictReader(file)]


def _run(row: dict[str, str]) -> Run:
    return Run(**stated(row), hardware=_processor(row), fitted=row["fit"] == "yes")


def _processor(row: dict[str, str]) -> HardwareSpec:
    """The processor of a row, with the cores that its threads ran on: a relative's with its cores, clock and DIMMs."""
    like, cores = load_hardware(row["like"]), min(int(row["cores"]), int(row["threads"]))
    clock = float(row["clock_ghz"]) * 1e9
    assert like.core_cycles is not None and like.units is not None  # on file
    scale = cores * clock / like.core_cycles
    factors = [str(cores), like.derivation["bf16"].factors[1], f"{row['clock_ghz']} GHz"]
    derivation = like.derivation["bf16"].model_copy(update={"factors": factors})
    bandwidth = int(row["channels"]) * 8e9 * float(row["rate_gts"])
    update = {
        "product": row["processor"],
        "units": cores,
        "peak": {math: scale * rate for math, rate in like.peak.items()},
        "memory": like.memory.model_copy(update={"bandwidth": bandwidth, "usable": 1e12}),
        "derivation": {**like.derivation, "bf16": derivation},
    }
    return like.model_copy(update=update)


def off(found: list[Run]) -> tuple[float, float]:
    """The median factor between predicted and measured, either way, and the largest."""
    factors = [exp(abs(log(run.predicted / run.measured))) for run in found]
    return median(factors), max(factors)


@click.command()
def command() -> None:
    """Print what rows of the fit say of each constant, and how far off all are by those on file."""
    found = runs()
    for run in found:
        said = ", ".join(f"{name} {value:.1f}" for name, value in run.flop.items()) if run.of_prompt else ""
        click.echo(f"{run.predicted / run.measured:5.2f} {'fit' if run.fitted else 'aside'} {run.case}  {said}")
    for fitted in (True, False):
        for of_prompt in (True, False):
            some = [run for run in found if (run.fitted, run.of_prompt) == (fitted, of_prompt)]
            middle, most = off(some)
            bias = exp(fmean(log(run.predicted / run.measured) for run in some))
            name = f"{'fit' if fitted else 'aside'}, {'prompts' if of_prompt else 'tokens'}"
            click.echo(f"{name}: {len(some)} rows, median factor {middle:.2f}, largest {most:.2f}, mean {bias:.2f}")
