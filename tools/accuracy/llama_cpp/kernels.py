"""Constants of ggml's kernels on this CPU: single operators of another model, timed in llama.cpp's own library."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from calibrate.fit import Measurement, errors, fit_kernel
from inferplan.catalog.assemble import Request, assemble
from inferplan.devices.constants import Fit
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.graph import build
from inferplan.work.ops import Attention, Matmul, Op
from inferplan.work.step import decode, prefill
from tools.accuracy.llama_cpp.gguf_model import WEIGHTS, Sizes

SCRIPT = Path(__file__).with_name("ggml_laps.py")
OTHER = Sizes(width=896, layers=1, heads=14, kv_heads=2, head_dim=64, inner=4864, vocab=12288)
"""The sizes of the model whose operators are timed; none of its widths is one of the served model's."""
PROMPTS, BATCHES = (16, 128), (1, 4)
CONTEXTS = (255, 767)
ROOM = 1.5
MANY = 64
"""Rows from which a matmul says what its arithmetic reaches."""


_UNITS = {"int8": "GOP/s"}


@dataclass(frozen=True, kw_only=True)
class Timed:
    """An operator of a format with its seconds, and the share of its time that threads waited for a core."""

    fmt: str
    op: Op
    seconds: float
    waited: float


def hardware_text(bandwidth: float, peaks: Mapping[str, float], memory: float, cores: int) -> str:
    """A hardware file of measured ceilings."""
    return yaml.safe_dump(
        {
            "name": "this-cpu",
            "vendor": "CPU",
            "product": "the CPU that was measured",
            "segment": "datacenter",
            "unit": "all cores that one operating system sees",
            "year": 2026,
            "source": "ggml on this machine, python -m tools.accuracy llama-cpp",
            "confidence": "low",
            "measured": True,
            "memory": {
                "label": f"{memory / 1e9:.0f} GB",
                "kind": "DDR",
                "bandwidth": f"{room(bandwidth) / 1e9:.4g} GB/s",
                "usable": f"{memory:.0f} B",
                "usable_basis": "MemTotal",
            },
            "peak": {name: f"{room(rate) / 1e9:.4g} {_UNITS.get(name, 'GFLOP/s')}" for name, rate in peaks.items()},
            "links": [],
            "units": cores,
        },
        sort_keys=False,
    )


def deployed(model: str, hardware: Path, fmt: str) -> Deployment:
    """A model under llama.cpp in a format."""
    return assemble(Request(model=model, gpu=str(hardware), quant=WEIGHTS[fmt], engine="llama.cpp"))


def shapes(deployment: Deployment) -> list[Op]:
    """The different matmuls and attentions of prompts and of decode steps."""
    steps = [prefill(1.0, float(new), 0.0) for new in PROMPTS]
    steps += [decode(float(batch), float(past)) for batch in BATCHES for past in CONTEXTS]
    found: dict[str, Op] = {}
    for step in steps:
        for stage in build(deployment, step):
            for op in stage.ops:
                if isinstance(op, Matmul) or (isinstance(op, Attention) and _whole(op)):
                    one = replace(op, name=op.kernel, count=1.0)
                    found.setdefault(repr(one), one)
    return list(found.values())


def _whole(op: Attention) -> bool:
    """Whether it is a decode's, or a prompt's long enough for the kernel of prompts."""
    return (float(op.new) == 1.0) == op.kernel.endswith("decode")


def _asked(op: Op, fmt: str) -> dict[str, Any]:
    """An operator as the script takes it."""
    if isinstance(op, Matmul):
        return {"kind": "matmul", "type": fmt, "m": round(float(op.m)), "n": op.n, "k": op.k}
    assert isinstance(op, Attention)
    loads = {name: round(float(getattr(op, name))) for name in ("batch", "new", "past")}
    return {"kind": "attention", **loads, "heads": op.heads, "kv_heads": op.kv_heads, "head_dim": op.key_dim}


def timed(python: Path, threads: int, before: Sequence[str], deployments: Mapping[str, Deployment]) -> list[Timed]:
    """Every operator once; equal ones of several formats are timed once. before: words in front of the command."""
    asked: dict[str, dict[str, Any]] = {}
    pairs: list[tuple[str, Op, str]] = []
    for fmt, deployment in deployments.items():
        for op in shapes(deployment):
            shape = _asked(op, fmt)
            key = json.dumps(shape)
            asked[key] = shape
            pairs.append((fmt, op, key))
    command = [*before, str(python), str(SCRIPT), str(threads)]
    said = subprocess.run(
        command, input=json.dumps(list(asked.values())), capture_output=True, text=True, check=True
    ).stdout
    laps = dict(zip(asked, json.loads(said), strict=True))
    return [Timed(fmt=fmt, op=op, seconds=laps[key]["seconds"], waited=laps[key]["waited"]) for fmt, op, key in pairs]


def ceilings(found: Sequence[Timed]) -> tuple[float, dict[str, float]]:
    """The most bytes and operations a second that an operator reached, by kind of arithmetic."""
    bandwidth, peaks = 0.0, dict[str, float]()
    for one in found:
        work = one.op.work()
        if isinstance(one.op, Matmul) and float(one.op.m) <= 1.0:
            bandwidth = max(bandwidth, float(work.bytes) / one.seconds)
        if isinstance(one.op, Matmul) and float(one.op.m) >= MANY:
            name = "fp16" if one.fmt == "f16" else "int8"
            peaks[name] = max(peaks.get(name, 0.0), float(work.flop) / one.seconds)
    peaks["fp32"] = peaks["bf16"] = peaks["fp16"]
    peaks["int8"] = max(peaks["int8"], peaks["fp16"])
    return bandwidth, peaks


def room(rate: float) -> float:
    """A rate of the hardware file: above what single operators reached, as a server may reach more and no share of a
    peak is above one. The constants say what was reached."""
    return ROOM * rate


def constants(found: Sequence[Timed], hardware: Any) -> Iterator[tuple[str, str, Fit, dict[str, float]]]:
    """Kernel, format, fit, and its errors on what it was fitted to."""
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for one in found:
        measured = Measurement(op=one.op, seconds=one.seconds)
        groups.setdefault(measured.group, []).append(measured)
    for (kernel, label), rows in groups.items():
        fit = fit_kernel(rows, hardware)
        yield kernel, label, fit, errors(rows, hardware, fit)


def constants_text(fits: Sequence[tuple[str, str, Fit, dict[str, float]]], source: str) -> str:
    """The file for ``--calibration``: kernels alone, a step without any host."""
    table: dict[str, dict[str, Any]] = {}
    for kernel, label, fit, _ in fits:
        stated = {name: float(getattr(fit, name)) for name in ("math", "memory", "overhead")}
        if fit.sharpness < float("inf"):
            stated["sharpness"] = float(fit.sharpness)
        table.setdefault(kernel, {})[label] = stated
    rest = {"memory": 0.5}
    for kernel in ("norm", "elementwise", "copy", "gather"):
        table[kernel] = {"any": rest}
    return yaml.safe_dump(
        {
            "name": "this-cpu",
            "engine": "llama.cpp",
            "provenance": {"source": source},
            "step": {"host": 0.0, "layer": 0.0, "sequence": 0.0},
            "constants": table,
        },
        sort_keys=False,
    )
