"""``python -m tools.fitting host-experts SHARED``: what KTransformers' kernels of experts reach on a host, from the
tokens and prompts of the hosts that are not kept aside, and the errors of the others."""

from __future__ import annotations

import csv
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click
import numpy as np
from scipy.optimize import least_squares

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import config_root, load_hardware, load_model
from inferplan.catalog.offload import OffloadAsked
from inferplan.devices.hardware import HardwareSpec
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment, moe_parts
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.phase import Phase
from inferplan.models.spec import ModelSpec
from tools.fitting.one_stream import OneStream, stated

_TABLE = Path("measured") / "published" / "parts" / "cpu_offload.csv"
_HOSTS = {
    "2x Intel Xeon Gold 6454S (32c)": "2x-xeon-6454s",
    "2x Intel Xeon Platinum 8488C": "2x-xeon-8488c",
}
_MODELS = {"DeepSeek-V3/R1 671B": ("deepseek-v3", "q4_k_m"), "MiniMax-M2.1": ("minimax-m2.1", "native")}
_LAYERWISE = 4096
"""Tokens from which prompts of native formats are taken to go to the GPU layer by layer, which is not priced: the
seconds of MiniMax-M2.1 fall from 15.9 for 2,048 tokens to 12.2 for 8,192."""
_ENGINE, _WHOLE = "ktransformers", "ktransformers@0.2"
"""The version of the rows of native experts, and that of GGUF files of the whole model."""


@dataclass(frozen=True, kw_only=True)
class Run(OneStream):
    """One of a GPU and a host. chosen: experts of a token where the run had fewer than the model's own."""

    gpu: str
    host: str
    memory: float | None = None
    chosen: int | None = None
    said: str = ""

    @property
    def case(self) -> str:
        """In words."""
        each = f", {self.chosen} experts" if self.chosen else ""
        what = "prompts of" if self.of_prompt else "tokens behind"
        return f"{self.model}{each}, {self.quant}, {self.gpu}, {self.host}{self.said}, {what} {self.prompt:,.0f}"

    def estimate(self) -> Estimate:
        """As it is priced."""
        load = StaticLoad(prompt=self.prompt, output=self.output)
        return Estimate(
            deployment=_deployed(self.model, self.quant, self.gpu, self.host, self.memory, self.chosen), load=load
        )

    def phase(self) -> Phase:
        """The step that was measured."""
        found = self.estimate()
        return found.prefill if self.of_prompt else found.decode

    @property
    def kernel(self) -> str:
        """Whose rate a prompt shows."""
        return "native" if self.quant == "native" else "gguf"


@cache
def _deployed(model: str, quant: str, gpu: str, host: str, memory: float | None, chosen: int | None) -> Deployment:
    layers = len(load_model(model).sequence)
    placed = OffloadAsked(cpu_moe_layers=layers, host=host, host_memory="2TB")
    engine = _ENGINE if quant == "native" else _WHOLE
    request = Request(model=model, gpu=gpu, quant=quant, engine=engine, offload=placed)

    def card(name: str) -> HardwareSpec:
        found = load_hardware(name)
        if name != gpu or memory is None:
            return found
        return found.model_copy(update={"memory": found.memory.model_copy(update={"usable": memory})})

    return assemble(request, lambda name: _choosing(load_model(name), chosen), card)


def _choosing(model: ModelSpec, chosen: int | None) -> ModelSpec:
    """The model where each token has so many experts."""
    if chosen is None:
        return model
    layers = [
        one.model_copy(update={"ffn": one.ffn.model_copy(update={"top_k": chosen})})
        if one.ffn and moe_parts(one)
        else one
        for one in model.layers
    ]
    return model.model_copy(update={"layers": layers})


def runs(shared: Path) -> list[Run]:
    """Every run that can be priced: of the shared table, and of ``tests/benchmarks/host_experts.csv``."""
    with (shared / _TABLE).open(encoding="utf-8", newline="") as file:
        found = [_shared(row) for row in csv.DictReader(file)]
    path = config_root().parent / "tests" / "benchmarks" / "host_experts.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return [one for one in found if one is not None] + [_own(row) for row in csv.DictReader(file)]


def _shared(row: dict[str, str]) -> Run | None:
    known = row["cpu"] in _HOSTS and row["model"] in _MODELS and row["num_gpus"] == "1"
    if not known or row["quantity"] not in ("prompt_speed", "generation_speed"):
        return None
    (model, quant), prompt = _MODELS[row["model"]], float(row["prompt_tokens"])
    of_prompt = row["quantity"] == "prompt_speed"
    if of_prompt and quant == "native" and prompt >= _LAYERWISE:
        return None
    return Run(
        source=f"ktransformers, {row['source'].rpartition('/')[2]}",
        model=model,
        quant=quant,
        gpu="rtx-4090",
        host=_HOSTS[row["cpu"]],
        prompt=prompt,
        output=float(row["generated_tokens"] or 128),
        of_prompt=of_prompt,
        measured=float(row["value"]),
        memory=48 * 2.0**30 if "48GB" in row["gpu"] else None,
        chosen=6 if row["note"].startswith("6 experts") else None,
        said=f", {row['engine']} {row['version']}".rstrip(),
    )


def _own(row: dict[str, str]) -> Run:
    return Run(**stated(row), gpu=row["gpu"], host=row["host"])


def aside(host: str) -> bool:
    """Whether a host is of the third that no constant is taken from: by the SHA-256 of its name."""
    return int(hashlib.sha256(host.encode()).hexdigest(), 16) < 2**256 // 3


def _parts(run: Run) -> tuple[float, float, float]:
    """Seconds of a step that do not depend on the constants, those of the host's experts at the constants on file, and
    layers with experts there."""
    phase, offload = run.phase(), run.estimate().deployment.offload
    assert offload is not None  # every run has one
    there = (cost for cost in phase.costs if cost.op.place == "host" and cost.op.kernel.startswith("grouped_matmul"))
    experts = sum(float(cost.total) for cost in there)
    rest = float(phase.time) - experts - offload.waits * offload.apart
    return rest, experts, float(offload.apart)


def fitted(found: list[Run]) -> dict[str, float]:
    """The constants by name: least squares of the logarithm over tokens, then over prompts of each kind of kernel."""
    kept = [one for one in found if not aside(one.host)]
    tokens = [(one, *_parts(one)) for one in kept if not one.of_prompt]
    shares = {_sockets(run): _share(run) for run, *_ in tokens}
    order = sorted(shares)

    def off(logs: np.ndarray) -> list[float]:
        *reads, waits = np.exp(logs)
        slower = {sockets: shares[sockets] / share for sockets, share in zip(order, reads)}
        seconds = [rest + experts * slower[_sockets(run)] + waits * layers for run, rest, experts, layers in tokens]
        return [float(np.log(each * run.measured)) for each, (run, *_) in zip(seconds, tokens)]

    best = least_squares(off, np.log([*(0.5 for _ in order), 2e-4]))
    *reads, waits = (float(value) for value in np.exp(best.x))
    constants = {f"reads_experts, {sockets} sockets": value for sockets, value in zip(order, reads)} | {"waits": waits}
    for kind in sorted({one.kernel for one in kept if one.of_prompt}):
        prompts = [(one, *_parts(one)) for one in kept if one.of_prompt and one.kernel == kind]
        flop = _flop(prompts[0][0])
        factors = [
            experts / (run.prompt / run.measured - rest - waits * layers) for run, rest, experts, layers in prompts
        ]
        constants[f"flop, {kind}"] = flop * float(np.exp(np.mean(np.log(factors))))
    return constants


def _host(run: Run) -> Deployment:
    offload = run.estimate().deployment.offload
    assert offload is not None  # every run has one
    return offload.host


def _sockets(run: Run) -> int:
    return _host(run).hardware.sockets


def _share(run: Run) -> float:
    fit = _host(run).calibration.fit("grouped_matmul", "any")
    assert fit is not None  # on file
    return fit.memory


def _flop(run: Run) -> float:
    host = _host(run)
    fit = host.calibration.fit("grouped_matmul", f"{host.precision.experts.name}xbf16")
    assert fit is not None and host.hardware.core_cycles  # on file
    return fit.math * host.hardware.peak_of("bf16") / host.hardware.core_cycles


@click.command()
@click.argument("shared", type=click.Path(path_type=Path))
def command(shared: Path) -> None:
    """Print the constants, and how far off the hosts kept aside are by those on file."""
    found = runs(shared)
    for name, value in fitted(found).items():
        click.echo(f"{name}: {value:.4g}")
    for run in found:
        click.echo(f"{run.predicted / run.measured:5.2f} {'aside' if aside(run.host) else 'fit'} {run.case}")
