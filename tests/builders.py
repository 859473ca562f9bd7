"""Specs written in one line, for tests that need a device or a model of their own."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from inferplan.catalog.assemble import load_engine
from inferplan.devices.constants import IDEAL, Calibration
from inferplan.devices.engine import Engine
from inferplan.devices.hardware import HardwareSpec, Link, Memory
from inferplan.estimate.deployment import Deployment
from inferplan.models.spec import ModelSpec
from inferplan.work.formats import Format, Precision, uniform
from inferplan.work.parallel import Parallelism

SOURCE = "written for a test"
LLAMA_3_1_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
"""The fields of its config.json that say something of shapes."""
Q4 = Format(name="q4", bits=4, math="int4", source="four bits and nothing else")
"""Four bits without scales, as textbooks count them."""


def chip(
    bandwidth: float, peak: float | dict[str, float], usable: float = 80e9, link: float | list[Link] | None = None
) -> HardwareSpec:
    """A device of that bandwidth and bf16 peak (or peaks by arithmetic), with one link that joins any number."""
    peaks = peak if isinstance(peak, dict) else {"bf16": peak, "fp16": peak, "fp32": peak}
    links = link if isinstance(link, list) else [Link(name="link", bandwidth=f"{link!r} B/s")] if link else []
    return HardwareSpec(
        name="chip",
        vendor="test",
        product="chip",
        source=SOURCE,
        confidence="high",
        memory=Memory(label="test", bandwidth=f"{bandwidth!r} B/s", usable=f"{usable!r} B"),
        peak={math: f"{value!r} FLOP/s" for math, value in peaks.items()},
        links=links,
    )


def dense(
    *,
    layers: int,
    d_model: int,
    heads: int,
    d_ff: int,
    vocab: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    gated: bool = True,
    **more: Any,
) -> ModelSpec:
    """A dense decoder without norm weights, as textbooks count: every parameter is a matrix."""
    mixer = {
        "kind": "attention",
        "heads": heads,
        "kv_heads": kv_heads or heads,
        "head_dim": head_dim or d_model // heads,
    }
    ffn = {"kind": "mlp", "d_ff": d_ff, "gated": gated}
    given = {"name": "test", "source": SOURCE, "norm": "plain", "final_norm": False} | more
    mixer |= given.pop("mixer", {})
    group = {"repeat": layers, "mixer": mixer, "ffn": given.pop("ffn", ffn)}
    return ModelSpec.model_validate({**given, "d_model": d_model, "vocab": vocab, "layers": [group]})


def of_size(parameters: float, *, layers: int, d_model: int, **shape: Any) -> ModelSpec:
    """A dense decoder whose tied vocabulary fills it up to ``parameters``, as near as whole rows allow."""
    body = dense(layers=layers, d_model=d_model, vocab=1, tied=True, **shape).parameters["total"] - d_model
    return dense(layers=layers, d_model=d_model, vocab=round((parameters - body) / d_model), tied=True, **shape)


def all_in(fmt: Format, base: str = "bf16") -> Precision:
    """Every stored tensor in ``fmt``; activations and arithmetic stay in the base format."""
    wide = uniform(base)
    return replace(wide, weights=fmt, experts=fmt, kv=fmt, embedding=fmt, head=fmt)


@cache
def engine_named(name: str) -> Engine:
    return load_engine(name)


def deploy(
    model: ModelSpec,
    hardware: HardwareSpec,
    precision: Precision | str = "bf16",
    parallel: Parallelism | int = 1,
    calibration: Calibration = IDEAL,
    engine: str = "none",
) -> Deployment:
    """A deployment of specs; an int is a tensor-parallel degree."""
    return Deployment(
        model=model,
        hardware=hardware,
        precision=uniform(precision) if isinstance(precision, str) else precision,
        parallel=Parallelism(tp=parallel) if isinstance(parallel, int) else parallel,
        engine=engine_named(engine),
        calibration=calibration,
    )
