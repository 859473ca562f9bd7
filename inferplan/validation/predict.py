"""Price one measured run: the simulator, told its flags and its load generator; for a static batch the estimate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from inferplan.answers.power import run_energy
from inferplan.devices.constants import IDEAL
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.memory import Footprint
from inferplan.estimate.phase import decode_phase, prefill_phase
from inferplan.estimate.run import require_no_cadence
from inferplan.serving import simulator
from inferplan.serving.flags import Flags
from inferplan.serving.fleet import Fleet
from inferplan.serving.options import Options
from inferplan.serving.result import SimulationResult
from inferplan.serving.simulator import simulate
from inferplan.serving.techniques.prefix_caching import cached_prefill
from inferplan.traffic.requests import ClosedLoop, Lengths, OpenLoop, Requests, Traffic
from inferplan.validation.clients import LoadGenerator, client_named
from inferplan.validation.deploy import deployment_of, drafts_of, prompts_of
from inferplan.validation.rows import STATISTICS, Measured, Run, StatisticValues

Band = tuple[float, float]
_BLOCK = 16
_PERCENTILES = {"median": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}


@dataclass(frozen=True, kw_only=True)
class Prediction(StatisticValues):
    """The same figures as measured ones; ``bands`` of means by metric, and of percentiles by metric and statistic; what
    is measured faster than an ideal device."""

    bands: Mapping[str, Band] = field(default_factory=dict)
    percentile_bands: Mapping[tuple[str, str], Band] = field(default_factory=dict)
    impossible: tuple[str, ...] = ()
    above_uncertain: tuple[str, ...] = ()
    """Metrics faster than peaks that may be too low themselves, so that nothing is wrong with the row."""
    basis: str = ""
    verdict: str = ""
    notes: tuple[str, ...] = ()

    def band(self, metric: str, statistic: str | None = None) -> Band | None:
        """Between which values 80 % of measured ones lie, by default at the own statistic; ``None`` where it is not
        known."""
        which = statistic or self.statistic
        return self.bands.get(metric) if which == "mean" else self.percentile_bands.get((metric, which))


def predict(run: Run, measured: Measured, deployment: Deployment | None = None) -> Prediction:
    """The prediction for a row. Raises the errors of a deployment that cannot work."""
    notes: tuple[str, ...] = ()
    if deployment is None:
        deployment, notes = deployment_of(run)
    return for_row(predict_run(run, deployment), deployment, run, measured, notes)


def predict_run(run: Run, deployment: Deployment) -> Prediction:
    """The prediction for whatever was measured of a run."""
    if run.batch is not None:
        require_no_cadence(deployment)
    return _static(deployment, run) if run.batch is not None else _served(deployment, run)


def for_row(
    found: Prediction, deployment: Deployment, run: Run, measured: Measured, notes: tuple[str, ...] = ()
) -> Prediction:
    """A run's prediction as that of a row: its statistic stands for a latency, and what of it cannot be is marked."""
    fast = impossible(deployment, run, measured)
    above = tuple(name for name in fast if name != "memory") if deployment.hardware.uncertain else ()
    fast = tuple(name for name in fast if name not in above)
    return replace(found, statistic=measured.statistic, impossible=fast, above_uncertain=above, notes=notes)


def _static(deployment: Deployment, run: Run) -> Prediction:
    """A static batch: prefilled together, then decoded together."""
    assert run.batch is not None
    load = StaticLoad(batch=float(run.batch), prompt=run.prompt, output=run.output)
    estimate = Estimate(deployment=deployment, load=load)
    bands: dict[str, Band] = {}
    for metric in ("ttft", "tpot", "e2el"):
        factors, value = estimate.band(metric), float(getattr(estimate, metric))
        if factors is not None:
            bands[metric] = (value * factors[0], value * factors[1])
    values = {"ttft": float(estimate.ttft), "e2el": float(estimate.e2el)}
    if run.output > 1:
        values["tpot"] = float(estimate.tpot)
    figures = {(metric, statistic): value for metric, value in values.items() for statistic in STATISTICS}
    figures["rate", "mean"] = float(estimate.output_rate)
    return Prediction(figures=figures, bands=bands, basis=estimate.basis)


def _served(deployment: Deployment, run: Run) -> Prediction:
    """A closed or an open loop."""
    result = served_run(deployment, run)
    figures = _figures(result, run) | _power(deployment, result, run)
    return Prediction(
        figures=figures,
        bands=_bands(result),
        percentile_bands=_late(result),
        basis=result.basis,
        verdict=result.verdict,
    )


def served_run(deployment: Deployment, run: Run) -> SimulationResult:
    """A closed or an open loop, as its client sends it."""
    client = client_of(run)
    if client.latency is not None:
        serving = deployment.engine.serving.model_copy(update={"latency": client.latency})
        deployment = replace(deployment, engine=deployment.engine.model_copy(update={"serving": serving}))
    spread = run.closed and (client.start == "spread" or run.requests is None)
    ramp = row_request_time(deployment, run) if spread else 0.0
    result = simulate(deployment, row_traffic(run, ramp), row_flags(run), row_options(run, deployment))
    return replace(result, first_burst=_first_burst(deployment, run))


def _first_burst(deployment: Deployment, run: Run) -> float:
    """The share by which the first burst of a client takes longer: of the constants on file, whose latency holds it,
    where one pool serves. Nothing was gained where prompts are computed apart (docs/accuracy-percentiles.md)."""
    tails = deployment.calibration.tails
    if tails is None or deployment.hardware.vendor not in tails.vendors:
        return 0.0
    alike = run.closed and run.prefill is None and deployment.calibration.anchor is None
    return tails.first_burst if alike else 0.0


def _power(deployment: Deployment, result: SimulationResult, run: Run) -> dict[tuple[str, str], float]:
    """Watts a GPU and joules an output token, of one pool without drafts on a device whose TDP is on file."""
    if deployment.hardware.power is None or run.prefill is not None or run.draft is not None:
        return {}
    energy = run_energy(deployment, result)
    if energy is None or not result.output_rate:
        return {}
    return {("power", "mean"): energy.watts, ("energy", "mean"): energy.watts * run.devices / result.output_rate}


def row_options(run: Run, deployment: Deployment) -> Options:
    """The warm-up, the drafts, and the workers of both pools where prompts and decodes are apart."""
    drafts, prompts = drafts_of(run, deployment), prompts_of(run, deployment)
    if run.prefill is None or prompts is None:
        return Options(warmup=run.warmup, speculation=drafts, hit_rate=run.shared.hit_rate)
    pool = run.prefill
    flags = Flags(
        max_num_seqs=pool.slots,
        max_num_batched_tokens=pool.token_budget,
        gpu_memory_utilization=pool.memory_fraction,
    )
    fleet = Fleet(prefill=pool.workers, decode=run.workers, prefill_deployment=prompts, prefill_flags=flags)
    return Options(warmup=run.warmup, fleet=fleet, speculation=drafts, hit_rate=run.shared.hit_rate)


def _figures(result: SimulationResult, run: Run) -> dict[tuple[str, str], float]:
    """Every statistic of the latencies, and the rates of the run, of the requests that finish."""
    figures: dict[tuple[str, str], float] = {}
    for metric in ("ttft", "tpot", "e2el"):
        values = getattr(result, metric)
        if len(values):
            figures[metric, "mean"] = float(np.mean(values))
            points = np.percentile(values, list(_PERCENTILES.values()))
            figures |= {(metric, name): float(value) for name, value in zip(_PERCENTILES, points)}
    figures["rate", "mean"] = result.output_rate
    figures["throughput", "mean"] = (result.input_rate + result.output_rate) / run.devices
    figures["output", "mean"] = result.output_rate / run.decoding_devices
    return figures


def _bands(result: SimulationResult) -> dict[str, Band]:
    """Seconds between which 80 % of measured means lie, by metric."""
    bands = {}
    for metric in ("ttft", "tpot", "e2el"):
        factors, values = result.band(metric), getattr(result, metric)
        if factors is not None and len(values):
            value = float(np.mean(values))
            bands[metric] = (value * factors[0], value * factors[1])
    return bands


def _late(result: SimulationResult) -> dict[tuple[str, str], Band]:
    """Seconds between which 80 % of measured first tokens lie at percentiles whose error is known."""
    found = {}
    for name, percentile in _PERCENTILES.items():
        late = None if result.tail is None else result.tail.between(percentile)
        if late is not None and len(result.ttft):
            predicted = float(np.percentile(result.ttft, percentile))
            found["ttft", name] = (max(predicted + late[0], 0.0), predicted + late[1])
    return found


def row_request_time(deployment: Deployment, run: Run) -> float:
    """Mean seconds of a request when all users begin at once: the time over which they are spread instead."""
    return simulator.request_time(deployment, row_traffic(run), row_flags(run), row_options(run, deployment))


def client_of(run: Run) -> LoadGenerator:
    """The load generator of a run's campaign."""
    return client_named(run.campaign)


def row_flags(run: Run) -> Flags:
    """The engine's flags that a row states; the rest are the version's defaults."""
    return Flags(
        max_num_seqs=run.slots,
        max_num_batched_tokens=run.token_budget,
        max_model_len=run.context,
        gpu_memory_utilization=run.memory_fraction,
        poll_interval_steps=run.waits.poll,
        batch_wait_steps=run.waits.batch,
        batch_wait_fill=run.waits.fill,
        balance_steps=run.waits.balance,
        client_timeout=run.timeout or client_of(run).timeout,
    )


def row_traffic(run: Run, ramp: float = 0.0) -> Traffic | Requests:
    """The load generator of a row; users begin one after the other over ``ramp`` seconds, or all at once."""
    kind = "fixed" if run.ratio_min >= 1 else "uniform"
    spread = 0.0 if run.ratio_min >= 1 else run.ratio_min
    prompt = Lengths(kind=kind, mean=run.prompt, spread=spread)  # type: ignore[arg-type]
    output = Lengths(kind=kind, mean=run.output, spread=spread)  # type: ignore[arg-type]
    if run.concurrency is not None:
        count = (run.requests or 10 * run.concurrency) + run.warmup
        loop = ClosedLoop(concurrency=run.concurrency, burst=not ramp, ramp=ramp)
        return Traffic(arrivals=loop, prompt=prompt, output=output, requests_count=count)
    assert run.rate is not None
    count = run.requests or max(round(run.rate * (run.duration or 1000 / run.rate)), 1)
    if run.shared.system_prompt:
        return _cycled(run, count)
    kind_of = "constant" if run.shared.system_prompts > 1 else "poisson"
    arrivals = OpenLoop(rate=run.rate, kind=kind_of)  # type: ignore[arg-type]
    return Traffic(arrivals=arrivals, prompt=prompt, output=output, requests_count=count)


def _cycled(run: Run, count: int) -> Requests:
    """A generator that cycles through fixed prompts, system prompt and user by turns, at a constant rate."""
    assert run.rate is not None
    texts = run.shared.system_prompts * run.shared.users
    shared = int(min(run.shared.system_prompt, run.prompt)) // _BLOCK
    blocks = int(run.prompt) // _BLOCK
    names = [
        tuple(_name(text % run.shared.system_prompts, -1, b) for b in range(shared))
        + tuple(_name(text % run.shared.system_prompts, text, b) for b in range(shared, blocks))
        for text in range(texts)
    ]
    whole = np.ones(count, dtype=np.int64)
    return Requests(
        prompt=whole * round(run.prompt),
        output=whole * round(run.output),
        arrival=np.arange(count) / run.rate,
        hashes=[names[i % texts] for i in range(count)],
        hash_block=_BLOCK,
    )


def _name(prompt: int, text: int, block: int) -> int:
    return ((prompt + 1) << 40) + ((text + 1) << 20) + block


def impossible(deployment: Deployment, run: Run, measured: Measured) -> tuple[str, ...]:
    """The means that are faster than an ideal device runs what the row states; ``memory`` where no room is for it.

    TPOT: an ideal decode step of the batch that follows from the measured figures themselves by Little's law, at half
    the output. Memory: prompts and outputs of that batch, where the engine keeps room for all of both, and prompts
    share nothing (:func:`_overfull`). TTFT: an ideal prefill of what is not cached of one prompt.
    """
    if run.rate is not None or measured.statistic != "mean":
        return ()
    ideal = replace(deployment, calibration=IDEAL)
    share = (1 + run.ratio_min) / 2
    prompt, output = run.prompt * share, run.output * share
    found = []
    users = float(run.concurrency or run.batch or 1)
    if measured.tpot is not None and output > 1 and run.draft is None:
        decoding = (output - 1) * measured.tpot
        batch = users * decoding / (decoding + (measured.ttft or 0.0)) if run.concurrency else users
        load = StaticLoad(batch=max(batch, 1.0), prompt=prompt, output=output)
        if measured.tpot < float(decode_phase(ideal, load, prompt + output / 2).time):
            found.append("tpot")
        alone = run.prefill is None and not run.shared.hit_rate
        if run.concurrency is not None and alone and _overfull(deployment, load):
            found.append("memory")
    if measured.ttft is not None and run.prefill is None:
        first = StaticLoad(batch=float(run.batch or 1), prompt=prompt, output=output)
        hits = run.shared.hit_rate
        ideally = cached_prefill(ideal, first.batch, prompt, hits) if hits else prefill_phase(ideal, first).time
        if measured.ttft < float(ideally):
            found.append("ttft")
    return tuple(found)


def _overfull(deployment: Deployment, load: StaticLoad) -> bool:
    """Whether the caches of requests that decode together exceed what the engine has for them at the most: its fraction
    of what weights leave. Only where it sets prompt and output aside when a request starts, and takes none back."""
    if deployment.engine.defaults.scheduler.admission != "reserve":
        return False
    held = Footprint(deployment=deployment, batch=load.batch, prompt=load.prompt, context=load.prompt + load.output)
    return float(held.state) > held.memory_fraction * (held.usable - held.weights)
