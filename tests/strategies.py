"""Random deployments that can exist: every division divides, every arithmetic has a peak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from inferplan.devices.constants import IDEAL, Calibration, Fit, StepConstants
from inferplan.devices.hardware import HardwareSpec
from inferplan.estimate.deployment import Deployment
from inferplan.models.spec import ModelSpec
from inferplan.work.formats import FORMATS, Precision
from inferplan.work.parallel import Parallelism
from tests.builders import chip, deploy

KERNELS = ("matmul", "grouped_matmul", "attention.prefill", "attention.decode", "norm", "elementwise", "gather", "copy")
KERNELS += ("collective.all_reduce", "collective.all_gather", "collective.all_to_all", "collective.send")
PEAKS = ("bf16", "fp8", "int8", "fp4", "int4")


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What a device can do in a second."""

    bandwidth: float
    peak: float
    link: float

    def hardware(self, factor: float = 1.0, usable: float = 80e9) -> HardwareSpec:
        peaks = dict.fromkeys(PEAKS, self.peak * factor)
        return chip(self.bandwidth * factor, peaks, usable=usable, link=self.link * factor)


def powers(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high).map(lambda exponent: 2**exponent)


rates = st.builds(
    Rates,
    bandwidth=st.floats(1e11, 1e13),
    peak=st.floats(1e13, 1e16),
    link=st.floats(1e9, 1e12),
)
formats = st.sampled_from([FORMATS[name] for name in ("bf16", "fp8", "fp8-block", "int8", "int4", "nvfp4", "mxfp4")])
loads = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 300).map(float),
        "prompt": st.integers(17, 5000).map(float),
        "output": st.integers(1, 600).map(float),
    }
)


@st.composite
def parallelisms(draw: st.DrawFn, cp: bool = True) -> Parallelism:
    tp, dp = draw(powers(0, 2)), draw(powers(0, 1))
    ep = draw(st.sampled_from([e for e in (1, 2, 4, 8) if (tp * dp) % e == 0]))
    return Parallelism(tp=tp, dp=dp, ep=ep, pp=draw(st.integers(1, 3)), cp=draw(powers(0, 1)) if cp else 1)


@st.composite
def mixers(draw: st.DrawFn, parallel: Parallelism, masks: tuple[str, ...]) -> dict[str, Any]:
    kv = draw(st.sampled_from([1, parallel.tp, 2 * parallel.tp]))
    heads = kv * draw(st.integers(1, 4)) * (1 if kv % parallel.tp == 0 else parallel.tp)
    mixer = {"kind": "attention", "heads": heads, "kv_heads": kv, "head_dim": draw(powers(4, 7))}
    mask = draw(st.sampled_from(masks))
    if mask != "causal":
        mixer[mask] = draw(st.integers(64, 3000))
    return mixer | {"qkv_bias": draw(st.booleans()), "qk_norm": draw(st.sampled_from(["none", "head"]))}


@st.composite
def feed_forwards(draw: st.DrawFn, parallel: Parallelism, kinds: tuple[str, ...]) -> dict[str, Any]:
    gated = draw(st.booleans())
    if draw(st.sampled_from(kinds)) == "mlp":
        return {"kind": "mlp", "d_ff": parallel.tp * draw(powers(4, 8)), "gated": gated}
    experts = parallel.ep * draw(powers(0, 3))
    shared = draw(st.sampled_from([0, 64 * parallel.tp]))
    width = parallel.expert_tp * draw(powers(4, 8))
    top_k = draw(st.integers(1, experts))
    return {"kind": "moe", "experts": experts, "top_k": top_k, "d_ff": width, "shared_d_ff": shared, "gated": gated}


@st.composite
def models(
    draw: st.DrawFn,
    parallel: Parallelism,
    masks: tuple[str, ...] = ("causal", "window", "chunk"),
    kinds: tuple[str, ...] = ("mlp", "moe"),
) -> ModelSpec:
    kinds = ("moe",) if parallel.ep > 1 else kinds
    groups = [
        {
            "repeat": draw(st.integers(1, 3)),
            "mixer": draw(mixers(parallel, masks)),
            "ffn": draw(feed_forwards(parallel, kinds)),
            "parallel": draw(st.booleans()),
        }
        for _ in range(draw(st.integers(1, 2)))
    ]
    missing = parallel.pp - sum(group["repeat"] for group in groups)
    groups[0]["repeat"] += max(missing, 0)
    return ModelSpec.model_validate(
        {
            "name": "random",
            "source": "drawn for a test",
            "d_model": draw(powers(6, 11)),
            "vocab": 64 * parallel.tp * draw(st.integers(1, 400)),
            "tied": draw(st.booleans()),
            "norm": draw(st.sampled_from(["rms", "layer", "plain"])),
            "layers": groups,
        }
    )


@st.composite
def precisions(draw: st.DrawFn) -> Precision:
    base = FORMATS["bf16"]
    weights, experts = draw(formats), draw(formats)
    inputs = weights if draw(st.booleans()) else base
    return Precision(
        weights=weights,
        activations=inputs,
        kv=draw(formats),
        experts=experts,
        embedding=draw(formats),
        head=draw(formats),
        base=base,
    )


fits = st.builds(
    Fit,
    math=st.floats(0.1, 1.0),
    memory=st.floats(0.1, 1.0),
    overhead=st.floats(0.0, 1e-4),
    sharpness=st.sampled_from([1.0, 1.5, 2.0, 3.7, 8.0, float("inf")]),
)


@st.composite
def calibrations(draw: st.DrawFn) -> Calibration:
    kernels = draw(st.lists(st.sampled_from(KERNELS), unique=True, min_size=1))
    step = StepConstants(
        host=draw(st.floats(0, 1e-3)), layer=draw(st.floats(0, 1e-5)), sequence=draw(st.floats(0, 1e-6))
    )
    constants = {kernel: {"any": draw(fits)} for kernel in kernels}
    return Calibration(name="drawn", constants=constants, step=step, fused=draw(st.booleans()))


@st.composite
def deployments(
    draw: st.DrawFn,
    masks: tuple[str, ...] = ("causal", "window", "chunk"),
    calibrated: bool | None = None,
    engine: str = "none",
    parallels: st.SearchStrategy[Parallelism] | None = None,
    kinds: tuple[str, ...] = ("mlp", "moe"),
) -> Deployment:
    """A random deployment; ``calibrated``: always, never, or (None) half of the time."""
    parallel = draw(parallelisms() if parallels is None else parallels)
    constants = draw(calibrations()) if (draw(st.booleans()) if calibrated is None else calibrated) else IDEAL
    return deploy(
        draw(models(parallel, masks, kinds)), draw(rates).hardware(), draw(precisions()), parallel, constants, engine
    )
