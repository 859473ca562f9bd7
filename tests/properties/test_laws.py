"""Laws that hold for every deployment, tried on random ones.

CI tries a share of them, always the same. The full number:
``INFERPLAN_LAW_EXAMPLES=10000 python -m pytest tests/properties -n auto``; with ``INFERPLAN_LAW_SHRINK=1`` a failure is
reduced to its smallest case, which can take minutes.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from inferplan.devices.constants import IDEAL, Calibration, Fit, StepConstants
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.graph import build
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.memory import Footprint
from inferplan.estimate.phase import Phase as StepPhase
from inferplan.estimate.phase import decode_phase, prefill_phase
from inferplan.estimate.roofline import TERMS, OpCost, price
from inferplan.models.layers import LayerSpec
from inferplan.models.spec import ModelSpec
from inferplan.units import Num
from inferplan.work.formats import FORMATS, uniform
from inferplan.work.ops import Collective, Wired
from inferplan.work.parallel import Parallelism
from inferplan.work.step import WIDE, decode, prefill
from tests.builders import all_in, deploy
from tests.cases import for_each
from tests.strategies import Rates, calibrations, deployments, loads, models, parallelisms, rates

FULL = "INFERPLAN_LAW_EXAMPLES" in os.environ
law = settings(
    max_examples=int(os.environ.get("INFERPLAN_LAW_EXAMPLES", "40")),
    deadline=None,
    derandomize=not FULL,
    phases=(Phase.explicit, Phase.generate, *((Phase.shrink,) if "INFERPLAN_LAW_SHRINK" in os.environ else ())),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
CLOSE = 1e-9
tensor_only = st.sampled_from([1, 2, 4]).map(lambda tp: Parallelism(tp=tp))
QUANTITIES = ("ttft", "tpot", "tpot_start", "tpot_end", "e2el", "output_rate", "total_rate")


def costs(deployment: Deployment, load: StaticLoad) -> list[OpCost]:
    estimate = Estimate(deployment=deployment, load=load)
    return [*estimate.prefill.costs, *estimate.decode.costs]


def close(ours: Num, theirs: Num, rel: float = CLOSE) -> bool:
    return bool(np.allclose(ours, theirs, rtol=rel, atol=0.0, equal_nan=True))


def rising(values: Num, slack: float = CLOSE) -> bool:
    """Never falls, to rounding or by no more than ``slack`` of it."""
    steps = np.atleast_1d(values)  # a scalar does not depend on what was varied
    return bool(np.all(np.diff(steps) >= -slack * np.abs(steps[1:])))


# One code path for a point and a grid ---------------------------------------------------------------------------------


@law
@given(deployments(), st.lists(loads, min_size=2, max_size=4))
def test_scalar_call_equals_array_element(deployment: Deployment, points: list[dict[str, float]]) -> None:
    grid = StaticLoad(**{name: np.array([point[name] for point in points]) for name in points[0]})
    whole = Estimate(deployment=deployment, load=grid)
    for index, point in enumerate(points):
        one = Estimate(deployment=deployment, load=StaticLoad(**point))
        for name in QUANTITIES:
            assert close(np.asarray(getattr(whole, name))[index], getattr(one, name)), name
        for name in ("flop", "bytes", "wire", "resident", "time"):
            for phase in ("prefill", "decode"):
                ours = np.broadcast_to(getattr(getattr(whole, phase), name), len(points))[index]
                assert close(ours, getattr(getattr(one, phase), name)), f"{phase} {name}"


@law
@given(deployments(engine="vllm"), st.lists(loads, min_size=2, max_size=4))
def test_footprint_of_a_grid_is_that_of_its_points(deployment: Deployment, points: list[dict[str, float]]) -> None:
    def footprint(batch: Num, prompt: Num, output: Num) -> Footprint:
        return Footprint(deployment=deployment, batch=batch, prompt=prompt, context=prompt + output)

    whole = footprint(*(np.array([point[name] for point in points]) for name in ("batch", "prompt", "output")))
    for index, point in enumerate(points):
        one = footprint(**point)
        if one.stage.layers != whole.stage.layers:  # a grid reports the stage that is fullest at its largest point
            continue
        for name in ("state", "total", "headroom"):
            ours = np.broadcast_to(getattr(whole, name), len(points))[index]
            assert np.isclose(ours, getattr(one, name), rtol=CLOSE, atol=1.0), name
        assert np.broadcast_to(whole.max_batch(), len(points))[index] == one.max_batch()


# More work never takes less time --------------------------------------------------------------------------------------


@law
@given(deployments(), loads)
def test_time_rises_with_batch(deployment: Deployment, point: dict[str, float]) -> None:
    """Batches of several sizes drain in a little more than they take, by which stage is the slowest (``StepTime``):
    where another becomes it, that little changes (0.2 % in a case that was drawn)."""
    load = StaticLoad(**(point | {"batch": np.arange(1.0, 40.0)}))  # type: ignore[arg-type]
    uneven = deployment.parallel.pp > 1 and deployment.parallel.dp > 1
    assert rising(prefill_phase(deployment, load).time, slack=0.01 if uneven else CLOSE)
    assert rising(decode_phase(deployment, load, point["prompt"]).time)


@law
@given(deployments(), loads)
def test_time_rises_with_new_tokens(deployment: Deployment, point: dict[str, float]) -> None:
    """On either side of WIDE, where kernels (and the way context parallelism cuts) change."""
    prompts = np.unique(np.linspace(WIDE + 1, 6000, 40).round())
    assert rising(prefill_phase(deployment, StaticLoad(**(point | {"prompt": prompts}))).time)  # type: ignore[arg-type]


@law
@given(deployments(masks=("causal", "window")), loads)
def test_decode_time_rises_with_context(deployment: Deployment, point: dict[str, float]) -> None:
    """Not with chunked attention: its reach, and so its time, falls back at each multiple of the chunk."""
    assert rising(decode_phase(deployment, StaticLoad(**point), np.arange(0.0, 4000.0, 37.0)).time)


@law
@given(deployments(parallels=tensor_only, kinds=("mlp",)), loads)
def test_throughput_never_falls_with_batch(deployment: Deployment, point: dict[str, float]) -> None:
    """Tokens a second rise with the batch of a dense model: what is shared (weights, overheads) is shared by more."""
    load = StaticLoad(**(point | {"batch": 2.0 ** np.arange(0, 9)}))  # type: ignore[arg-type]
    assert rising(load.batch / np.asarray(decode_phase(deployment, load, point["prompt"]).time))


# Rates ----------------------------------------------------------------------------------------------------------------


def in_less_time(fit: Fit, factor: float) -> Fit:
    """Every constant in seconds divided by ``factor``; ``ramp`` stands before the root of the seconds on the wire."""
    powers = {"s": 1.0, "s/B": 1.0, "s^0.5": 0.5, "": 0.0}
    terms = {name: constant / factor ** powers[TERMS[name].unit] for name, constant in fit.terms.items()}
    return fit.model_copy(update={"overhead": fit.overhead / factor, "terms": terms})


@st.composite
def scaled_pairs(draw: st.DrawFn) -> tuple[Deployment, Deployment, float]:
    """A deployment, and the same with every rate times a factor and every constant time divided by it."""
    parallel, factor = draw(parallelisms()), draw(st.floats(0.1, 100.0))
    model, speed, constants = draw(models(parallel)), draw(rates), draw(calibrations())
    if draw(st.booleans()):
        constants = IDEAL
    fast = {
        kernel: {name: in_less_time(fit, factor) for name, fit in table.items()}
        for kernel, table in constants.constants.items()
    }
    step = StepConstants(
        host=constants.step.host / factor,
        layer=constants.step.layer / factor,
        sequence=constants.step.sequence / factor,
    )
    faster = constants.model_copy(update={"constants": fast, "step": step})
    one = deploy(model, speed.hardware(), parallel=parallel, calibration=constants)
    return one, deploy(model, speed.hardware(factor), parallel=parallel, calibration=faster), factor


@law
@given(scaled_pairs(), loads)
def test_all_rates_times_c_is_time_over_c(pair: tuple[Deployment, Deployment, float], point: dict[str, float]) -> None:
    slow, fast, factor = pair
    load = StaticLoad(**point)
    first, second = Estimate(deployment=slow, load=load), Estimate(deployment=fast, load=load)
    for name in ("ttft", "tpot", "e2el"):
        assert close(getattr(first, name), getattr(second, name) * factor), name


@law
@given(deployments(calibrated=False), loads)
def test_ideal_saturates_a_resource_in_every_operator(deployment: Deployment, point: dict[str, float]) -> None:
    hardware = deployment.hardware
    for cost in costs(deployment, StaticLoad(**point)):
        used = [0.0, float(cost.work.bytes) / (float(cost.time) * hardware.memory.bandwidth)]
        if cost.op.math is not None:
            used.append(float(cost.work.flop) / (float(cost.time) * hardware.peak_of(cost.op.math)))
        if isinstance(cost.op, Wired):
            used.append(float(cost.work.wire) / (float(cost.time) * hardware.link(cost.op.span).bandwidth))
        assert max(used) == pytest.approx(1.0, rel=1e-12), cost.op.name


@law
@given(deployments(calibrated=True), loads)
def test_calibrated_never_beats_ideal(deployment: Deployment, point: dict[str, float]) -> None:
    load = StaticLoad(**point)
    for cost in costs(deployment, load):
        assert cost.time >= price(cost.op, deployment.hardware, IDEAL).time * (1 - CLOSE), cost.op.name
    real = Estimate(deployment=deployment, load=load)
    ideal = Estimate(deployment=replace(deployment, calibration=IDEAL), load=load)
    for name in ("ttft", "tpot", "e2el"):
        assert not getattr(real, name) < getattr(ideal, name) * (1 - CLOSE), name


@law
@given(deployments(calibrated=False), loads)
def test_utilisation_is_at_most_one(deployment: Deployment, point: dict[str, float]) -> None:
    """MBU of the ideal; MFU where one peak serves every format (as here)."""
    estimate = Estimate(deployment=deployment, load=StaticLoad(**point))
    for phase in (estimate.prefill, estimate.decode):
        assert 0 < phase.mbu <= 1 + CLOSE
        math = sum((c.work.flop * c.op.count * c.op.ranks for c in phase.costs if c.op.math is not None), start=0.0)
        peak = deployment.hardware.peak_of("bf16") * deployment.parallel.ranks
        assert math * phase.microbatches <= phase.time * peak * (1 + CLOSE)


# Division over ranks --------------------------------------------------------------------------------------------------


SHARED_SCANS = ("rwkv", "rglru", "kda", "gdn", "lightning")


def parts_of(model: ModelSpec) -> list[LayerSpec]:
    """Every different mixer, feed-forward and extra, with those that stand beside each other one by one."""
    parts = [part for layer, _ in model.distinct for part in layer.parts]
    return parts + [mixer for part in parts for mixer in getattr(part, "mixers", [])]


def undivided(deployment: Deployment) -> Deployment:
    return replace(deployment, parallel=Parallelism())


@law
@given(deployments(calibrated=False), loads)
def test_shards_conserve_flop(deployment: Deployment, point: dict[str, float]) -> None:
    """Summed over ranks, matmuls, attention and recurrences do the work of one device.

    Whole batches: sequences a multiple of dp and of the microbatches. Copied are the router and latent attention's down
    projections; KV heads where there are fewer than ranks, with their projections; and under context parallelism the
    head, the recurrences and the expansion of latents.
    """
    parallel = deployment.parallel
    batch = float(parallel.dp * parallel.pp * int(point["batch"]))
    load = StaticLoad(**(point | {"batch": batch}))
    whole = prefill_phase(undivided(deployment), load)
    cut = prefill_phase(deployment, load)

    def flop(phase_costs: list[OpCost], microbatches: Num, part: str) -> float:
        return sum(
            float(c.work.flop * c.op.count * c.op.ranks * microbatches)
            for c in phase_costs
            if c.op.name == part or c.op.name.startswith(f"{part}.")
        )

    counted = ((whole.costs, 1.0), (cut.costs, cut.microbatches))
    parts = ["attn.out", "attn.q_b", "attn.q", "ffn.expert", "ffn.gate_up", "ffn.up", "ffn.down"]
    parts += [
        "ffn.key",
        "ffn.value",
        "rwkv.key",
        "gdn.out",
        "kda.in_qkv",
        "lightning.qkv",
        "hyena.in",
        "block.ffn.down",
    ]
    absorbed = [flop(costs, number, "attn.absorb_q") for costs, number in counted]
    if close(*absorbed):  # ranks that gather latents may take the other form of latent attention
        parts.append("attn.core")
    if parallel.cp == 1:
        parts += ["head", "attn.kv_b", "hyena.long_conv", *(f"{name}.scan" for name in SHARED_SCANS)]
    if not any(getattr(part, "kv_heads", parallel.tp) < parallel.tp for part in parts_of(deployment.model)):
        parts.append("attn.qkv")
    for part in parts:
        assert close(*(flop(costs, number, part) for costs, number in counted)), part


@law
@given(deployments(calibrated=False), loads)
def test_shards_conserve_weight_bytes(deployment: Deployment, point: dict[str, float]) -> None:
    """What tensor and expert parallelism divide adds up to the whole; what they copy is named in ``shard``."""
    model, parallel = deployment.model, deployment.parallel
    for weight, _ in model.weights():
        shared = {"none": 1, "tp": parallel.tp, "dense": parallel.dense_ranks, "experts": parallel.expert_ranks}
        ranks = shared[weight.shard]
        if weight.shard == "experts":
            slots = weight.units + parallel.redundant
            assert weight.per_rank(parallel) * ranks == pytest.approx(weight.elements * slots / weight.units, rel=1e-12)
        elif weight.units % ranks == 0:
            assert weight.per_rank(parallel) * ranks == pytest.approx(weight.elements, rel=1e-12), weight.name
        else:
            assert weight.per_rank(parallel) * ranks > weight.elements
    if not model.tied:
        load = Footprint(
            deployment=replace(deployment, parallel=Parallelism(pp=parallel.pp)), batch=1, prompt=1, context=1
        )
        one = Footprint(deployment=undivided(deployment), batch=1, prompt=1, context=1)
        assert sum(stage.weights for stage in load.stages) == pytest.approx(one.weights, rel=1e-12)


@law
@given(deployments(calibrated=False, parallels=st.just(Parallelism()), kinds=("mlp",)))
def test_resident_weights_are_those_of_the_footprint(deployment: Deployment) -> None:
    """Two floors agree: a decode of one token reads every matrix that the memory holds, except looked-up rows.

    One device, dense: the matmuls' weights plus the embedding table (unless it is the head), norms and biases.
    """
    load = StaticLoad(prompt=17.0, output=2.0)
    read = sum(
        float(c.op.resident() * c.op.count) for c in decode_phase(deployment, load, 17.0).costs if c.op.kind == "matmul"
    )
    precision = deployment.precision
    held = sum(
        weight.elements * count * getattr(precision, weight.role).width
        for weight, count in deployment.model.weights()
        if len(weight.shape) == 2 and weight.name not in ("norm", "final_norm")
    )
    table = deployment.model.vocab * deployment.model.d_model * precision.embedding.width
    assert read == pytest.approx(held - (0.0 if deployment.model.tied else table), rel=1e-12)


@law
@given(models(Parallelism()), rates, calibrations(), loads)
def test_one_rank_has_no_collectives(
    model: ModelSpec, speed: Rates, constants: Calibration, point: dict[str, float]
) -> None:
    deployment = deploy(model, speed.hardware(), calibration=constants)
    for step in (prefill(point["batch"], point["prompt"]), decode(point["batch"], point["prompt"])):
        assert not any(isinstance(op, Collective) for stage in build(deployment, step) for op in stage.ops)


@for_each("pattern", ["all_reduce", "all_gather", "all_to_all", "reduce_scatter", "send"])
def test_one_rank_collective_is_free(pattern: str) -> None:
    op = Collective(name="x", pattern=pattern, elements=1e9, group=1, format=FORMATS["bf16"], span=1)
    hardware = Rates(bandwidth=1e12, peak=1e15, link=1e9).hardware()
    assert op.work().wire == 0
    assert price(op, hardware, IDEAL).time == 0


@law
@given(deployments(calibrated=False), loads, st.sampled_from(["fp32", "bf16"]))
def test_half_the_width_is_half_the_bytes(deployment: Deployment, point: dict[str, float], wide: str) -> None:
    """fp32 to bf16 everywhere: weights, state and all traffic; bf16 to int8 storage: weights, state, resident bytes.

    Where a model fixes the width of a recurrent state (or an indexer that of its positions), what is cached for
    positions still halves. The sums of squares of a norm over ranks are fp32 in any format.
    """
    load = StaticLoad(**point)
    hardware = deployment.hardware.model_copy(update={"peak": deployment.hardware.peak | {"fp32": 1e15}})
    formats = {"fp32": (uniform("fp32"), uniform("bf16")), "bf16": (uniform("bf16"), all_in(FORMATS["int8"]))}[wide]
    first, second = (
        Estimate(deployment=replace(deployment, precision=precision, hardware=hardware), load=load)
        for precision in formats
    )
    parts = parts_of(deployment.model)
    kinds = {part.kind for part in parts}
    fixed = any(getattr(part, "state_bits", None) or getattr(part, "indexer", None) for part in parts)
    vectors = sum(w.elements * c for w, c in deployment.model.weights() if w.role == "base")
    if wide == "fp32" or vectors == 0:
        for wider, narrower in zip(first.footprint.stages, second.footprint.stages):
            assert wider.weights == pytest.approx(2 * narrower.weights, rel=1e-12)
    for wider, narrower in zip(first.footprint.stages, second.footprint.stages):
        positions = [stage.state(load.context) - stage.recurrent for stage in (wider, narrower)]
        assert positions[0] == pytest.approx(2 * positions[1], rel=1e-9)
        if wide == "fp32" and not fixed:
            assert wider.recurrent == pytest.approx(2 * narrower.recurrent, rel=1e-12)
    for phase in ("prefill", "decode"):
        one, other = getattr(first, phase), getattr(second, phase)
        assert one.flop == pytest.approx(other.flop, rel=1e-12)
        if wide == "fp32":
            sums = norm_sums(one)
            assert sums == norm_sums(other)
            assert one.wire - sums == pytest.approx(2 * (other.wire - sums), rel=1e-12)
            if not fixed:
                assert one.bytes == pytest.approx(2 * other.bytes, rel=1e-12)
        elif not fixed and not kinds & STAY_WIDE:
            assert one.resident == pytest.approx(2 * other.resident, rel=1e-12)


def norm_sums(phase: StepPhase) -> float:
    """Bytes on the wire of sums that ranks add up in fp32."""
    sent = phase._sum(lambda cost: cost.work.wire if cost.op.name == "attn.qk_norm.all_reduce" else 0.0, "B")
    return float(sent)


STAY_WIDE = {"moe", "altup", "mla", "hyper_connection", "compressed_attention", "disentangled_attention"}
"""A router, the mix of streams and the pool of entries stay in the base format; so do the keys and values that a latent
prefill has expanded, and positions that disentangled attention has projected."""


# The mean of a generation ---------------------------------------------------------------------------------------------


def explicit_mean(deployment: Deployment, load: StaticLoad) -> float:
    steps = np.arange(int(load.output) - 1, dtype=float)
    if not len(steps):
        return float("nan")
    return float(np.mean(decode_phase(deployment, load, load.prompt + steps).time))


@law
@given(deployments(calibrated=False), loads)
def test_mean_tpot_is_the_mean_of_its_steps(deployment: Deployment, point: dict[str, float]) -> None:
    mean_is_that_of_the_steps(deployment, point)


def mean_is_that_of_the_steps(deployment: Deployment, point: dict[str, float]) -> None:
    """With windows and chunks. Exact while nothing changes what binds it or which stage is slowest, else to 0.5 %.

    To 1 % on a pipeline, where it may change, too, whether the pass of a batch or the slowest stage sets the pace.
    """
    load = StaticLoad(**(point | {"output": min(point["output"], 400.0)}))
    ours = Estimate(deployment=deployment, load=load).tpot
    assert close(ours, explicit_mean(deployment, load), 5e-3 if deployment.parallel.pp == 1 else 1e-2)
    phase = decode_phase(deployment, load, load.prompt + np.arange(max(int(load.output) - 1, 1), dtype=float))
    binds = [np.asarray(cost.time_math) > np.asarray(cost.time_memory) for cost in phase.costs]
    binds += [np.argmax(np.broadcast_arrays(*times), axis=0) for times in (phase.stage_times, phase.mean_stage_times)]
    binds += [np.asarray(weight) for pair in phase.step_time.weights for weight in pair]
    if all(np.all(flags == flags.flat[0]) for flags in binds):
        assert close(ours, explicit_mean(deployment, load), 1e-11)


STAIRS = ("compressed_attention", "block_sparse_attention", "mlp", "moe")


@law
@given(deployments(calibrated=False, kinds=STAIRS), loads)
def test_mean_tpot_on_stairs_is_the_mean_of_its_steps(deployment: Deployment, point: dict[str, float]) -> None:
    """Entries and blocks come whole: what a step looks at rises in stairs of several lengths."""
    mean_is_that_of_the_steps(deployment, point)


@law
@given(deployments(calibrated=True), loads)
def test_mean_tpot_of_a_calibrated_generation(deployment: Deployment, point: dict[str, float]) -> None:
    load = StaticLoad(**(point | {"output": min(point["output"], 400.0)}))
    within = 5e-3 if deployment.parallel.pp == 1 else 1e-2
    assert close(Estimate(deployment=deployment, load=load).tpot, explicit_mean(deployment, load), within)


@law
@given(deployments(calibrated=False), loads)
def test_mean_tpot_without_a_cache(deployment: Deployment, point: dict[str, float]) -> None:
    load = StaticLoad(**(point | {"output": min(point["output"], 100.0)}), kv_cache=False)
    if load.output > 1:
        assert close(Estimate(deployment=deployment, load=load).tpot, explicit_mean(deployment, load), 1e-3)


@law
@given(deployments(), loads)
def test_latency_is_its_parts(deployment: Deployment, point: dict[str, float]) -> None:
    """TTFT + (output - 1) TPOT, the first step no longer than the last unless chunks reset it; shares add up."""
    estimate = Estimate(deployment=deployment, load=StaticLoad(**point))
    rest = 0.0 if point["output"] == 1 else (point["output"] - 1) * estimate.tpot
    assert estimate.e2el == pytest.approx(estimate.ttft + rest, rel=1e-12)
    for phase in (estimate.prefill, estimate.decode):
        assert sum(phase.by_operator().values()) == pytest.approx(float(phase.time), rel=1e-9)
        assert sum(phase.by_basis().values()) == pytest.approx(1.0)


# Limits ---------------------------------------------------------------------------------------------------------------


def at(footprint: Footprint, batch: float | None = None, context: float | None = None) -> Footprint:
    return replace(
        footprint,
        batch=footprint.batch if batch is None else batch,
        context=footprint.context if context is None else context,
    )


@law
@given(deployments(engine="none"), loads, st.floats(0.0, 1.0))
def test_limits_are_at_the_edge(deployment: Deployment, point: dict[str, float], room: float) -> None:
    check_limits(deployment, point, room)


@law
@given(
    st.sampled_from(["vllm", "sglang", "trtllm", "llama.cpp"]).flatmap(lambda engine: deployments(engine=engine)),
    loads,
    st.floats(0.0, 1.0),
)
def test_limits_of_engines_are_at_the_edge(deployment: Deployment, point: dict[str, float], room: float) -> None:
    check_limits(deployment, point, room)


def check_limits(deployment: Deployment, point: dict[str, float], room: float) -> None:
    """It fits at the largest batch and the longest context, and not with one more sequence or token."""
    footprint = Footprint(
        deployment=deployment,
        batch=point["batch"],
        prompt=point["prompt"],
        context=point["prompt"] + point["output"],
    )
    needed = float(np.max(footprint.total))
    memory = deployment.hardware.memory.model_copy(update={"usable": needed * (0.5 + 2 * room) + 1e6})
    footprint = replace(
        footprint, deployment=replace(deployment, hardware=deployment.hardware.model_copy(update={"memory": memory}))
    )
    batch = float(footprint.max_batch())
    assert np.isfinite(batch)
    if batch >= 1:
        assert at(footprint, batch=batch).fits
    if footprint.deployment.engine.name != "none" and not any(s.state(footprint.context) for s in footprint.stages):
        slots = footprint.deployment.engine.defaults.tier(footprint.deployment.hardware).max_sequences
        assert batch in (0, slots * deployment.parallel.dp)  # sequences keep nothing: the slots are the limit
        if batch:
            return
    assert not at(footprint, batch=batch + 1).fits
    longest = footprint.max_context()
    if 1 <= longest < np.inf:
        assert at(footprint, context=float(longest)).fits
    if longest < np.inf:
        page = footprint.deployment.engine.defaults.block_size
        assert not at(footprint, context=float(longest + page)).fits
