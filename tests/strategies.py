"""Random deployments that can exist: every division divides, every arithmetic has a peak."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from inferplan.catalog.assemble import load_engine
from inferplan.devices.constants import IDEAL, Calibration, Fit, StepConstants
from inferplan.devices.hardware import HardwareSpec
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.roofline import TERMS
from inferplan.models.spec import ModelSpec
from inferplan.work.formats import FORMATS, Precision
from inferplan.work.parallel import Parallelism
from tests.builders import chip, deploy
from tests.layer_strategies import EVERY_KIND, EXTRAS, FEED_FORWARDS, MASKS, MIXERS, RESET, attention, powers

_PHASED = ("attention", "mla", "scan", "long_conv")
KERNELS = ("matmul", "grouped_matmul", "grouped_matmul.exchanged", "norm", "elementwise", "gather", "copy", "conv")
KERNELS += ("index_select", "index_select.decode", "top_k", "mla.sparse", "mla.sparse.decode")
KERNELS += tuple(f"{kernel}.{phase}" for kernel in _PHASED for phase in ("prefill", "decode"))
KERNELS += tuple(f"collective.{pattern}" for pattern in ("all_reduce", "all_gather", "send"))
KERNELS += ("dispatch.normal", "combine.normal")
PEAKS = ("bf16", "fp8", "int8", "fp4", "int4")


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What a device can do in a second."""

    bandwidth: float
    peak: float
    link: float
    units: int | None = 132

    def hardware(self, factor: float = 1.0, usable: float = 80e9) -> HardwareSpec:
        peaks = dict.fromkeys(PEAKS, self.peak * factor)
        made = chip(self.bandwidth * factor, peaks, usable=usable, link=self.link * factor)
        return made.model_copy(update={"units": self.units})


rates = st.builds(
    Rates,
    bandwidth=st.floats(1e11, 1e13),
    peak=st.floats(1e13, 1e16),
    link=st.floats(1e9, 1e12),
    units=st.sampled_from([None, 16, 132]),
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
def layers(draw: st.DrawFn, parallel: Parallelism, d_model: int, masks: tuple[str, ...], kinds: frozenset[str]) -> Any:
    """One layer group of the kinds allowed: attention a third of the time, at times with a part beside it."""
    mixers, ffn = ([k for k in table if k in kinds] for table in (MIXERS, FEED_FORWARDS))
    mixers = [name for name in mixers if "chunk" in masks or name not in RESET]
    kind = draw(
        st.sampled_from([*mixers, *(["mla"] * 2 if "mla" in mixers else []), *["attention"] * max(len(mixers) // 2, 1)])
    )
    feed = draw(st.sampled_from(["moe"] if parallel.ep > 1 else ffn))
    group = {
        "repeat": draw(st.integers(1, 3)),
        "mixer": MIXERS[kind](draw, parallel, d_model) if kind != "attention" else attention(draw, parallel, masks),
        "ffn": FEED_FORWARDS[feed](draw, parallel, d_model),
        "parallel": draw(st.booleans()),
    }
    beside = [name for name in EXTRAS if name in kinds]
    if beside and draw(st.sampled_from([False, False, True])):
        group["extras"] = [EXTRAS[draw(st.sampled_from(beside))](draw, parallel, d_model)]
    return group


@st.composite
def models(
    draw: st.DrawFn,
    parallel: Parallelism,
    masks: tuple[str, ...] = MASKS,
    kinds: Collection[str] = EVERY_KIND,
) -> ModelSpec:
    """One or two different layers, each one to three times (more where there are more stages)."""
    d_model = draw(powers(6, 11))
    groups = [draw(layers(parallel, d_model, masks, frozenset(kinds))) for _ in range(draw(st.integers(1, 2)))]
    missing = parallel.pp - sum(group["repeat"] for group in groups)
    groups[0]["repeat"] += max(missing, 0)
    return ModelSpec.model_validate(
        {
            "name": "random",
            "source": "drawn for a test",
            "d_model": d_model,
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


def term_size(name: str) -> st.SearchStrategy[float]:
    """A constant of a term, up to what its physics allows and ten times a usual size."""
    return st.floats(0.0, min(TERMS[name].limit, 10 * TERMS[name].scale))


bands = st.tuples(st.floats(0.3, 1.0), st.floats(1.0, 3.0))


@st.composite
def fits(draw: st.DrawFn) -> Fit:
    """Every constant of a kernel: efficiencies, overhead, sharpness, up to four terms, its error and its range."""
    smooth = sorted(set(TERMS) - {"fallback"})  # which steps up at 8 MiB, where throughput may fall as the batch grows
    names = draw(st.lists(st.sampled_from(smooth), unique=True, max_size=4))
    low, high = draw(bands)
    return Fit(
        math=draw(st.floats(0.1, 1.0)),
        memory=draw(st.floats(0.1, 1.0)),
        overhead=draw(st.floats(0.0, 1e-4)),
        launch=draw(st.sampled_from([1.0, 0.75])),
        sharpness=draw(st.sampled_from([1.0, 1.5, 2.0, 3.7, 4.0, 8.0, float("inf")])),
        terms={name: draw(term_size(name)) for name in names},
        basis=draw(st.sampled_from(["calibrated", "transferred"])),
        error={"low": low, "high": high} if draw(st.booleans()) else {},
        flop_range=(0.0, draw(st.floats(1e6, 1e15))) if draw(st.booleans()) else None,
    )


@st.composite
def calibrations(draw: st.DrawFn) -> Calibration:
    kernels = draw(st.lists(st.sampled_from(KERNELS), unique=True, min_size=1))
    step = StepConstants(
        host=draw(st.floats(0, 1e-3)), layer=draw(st.floats(0, 1e-5)), sequence=draw(st.floats(0, 1e-6))
    )
    return Calibration(
        name="drawn",
        constants={kernel: {"any": draw(fits())} for kernel in kernels},
        step=step,
        fused=draw(st.booleans()),
        bands={"ttft": draw(bands), "tpot": draw(bands)} if draw(st.booleans()) else {},
    )


@st.composite
def deployments(
    draw: st.DrawFn,
    masks: tuple[str, ...] = MASKS,
    calibrated: bool | None = None,
    engine: str = "none",
    parallels: st.SearchStrategy[Parallelism] | None = None,
    kinds: Collection[str] = EVERY_KIND,
) -> Deployment:
    """A random deployment; ``calibrated``: always, never, or (None) half of the time."""
    parallel = draw(parallelisms() if parallels is None else parallels)
    if load_engine(engine).layers_alone:
        parallel = Parallelism(pp=parallel.pp, replicas=parallel.replicas)
    constants = draw(calibrations()) if (draw(st.booleans()) if calibrated is None else calibrated) else IDEAL
    model, hardware, precision = draw(models(parallel, masks, kinds)), draw(rates).hardware(), draw(precisions())
    if not load_engine(engine).keeps(precision.kv.name, hardware):
        precision = replace(precision, kv=precision.base)
    return deploy(model, hardware, precision, parallel, constants, engine)
