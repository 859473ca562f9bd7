"""A run in names to a :class:`Deployment`: the formats its label means, the engine's nearest version, its flags."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from functools import cache
from typing import Any

from inferplan.answers.drafting import measured_drafting
from inferplan.catalog.assemble import require_precision, routing_of
from inferplan.catalog.backends import Backends, with_backends
from inferplan.catalog.calibrations import load_calibration, load_kernels
from inferplan.catalog.drafts import head_beside
from inferplan.catalog.files import load
from inferplan.devices.constants import Calibration
from inferplan.devices.engine import Engine, EngineFlags, EngineSpec
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import UnknownNameError, UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.formats import native_precision
from inferplan.models.gguf_formats import file_precision, is_file_type
from inferplan.models.spec import ModelSpec
from inferplan.serving.techniques.speculation import PLAIN, Speculation
from inferplan.validation.names import formats_of_label, hardware_of, model_of
from inferplan.validation.rows import PromptWorkers, Run, Spread
from inferplan.work.exchange import ExchangeRules
from inferplan.work.formats import Format, Precision, find_format, held_by
from inferplan.work.parallel import Parallelism

_WIDE = 16
"""Bits of the format that residuals and attention run in."""


@cache
def _engine_spec(name: str) -> EngineSpec:
    return load("engines", name, EngineSpec)


@cache
def _calibration(gpu: str, engine: str, path: str | None, ideal: bool) -> Calibration:
    return load_calibration(hardware_of(gpu), path, ideal, engine)


def bare_deployment_of(run: Run) -> Deployment:
    """:func:`deployment_of` with the constants of its kernels, without those of the step."""
    deployment = replace(deployment_of(run)[0], calibration=_kernels(run.gpu, run.library))
    return with_backends(deployment, Backends(engine=run.library, chosen=run.backends))


@cache
def _kernels(gpu: str, engine: str) -> Calibration:
    return load_kernels(hardware_of(gpu), None, engine)


def engine_of(name: str, version: str | None, flags: EngineFlags) -> tuple[Engine, str]:
    """The engine at the version on file nearest to ``version``, and a note when that is not what was asked for.

    A version is on file when a documented one is not newer and of the same release line; names such as ``nightly`` are
    not, and take the newest.
    """
    spec = _engine_spec(name)
    note = ""
    known = spec.versions[-1]
    numbers = re.match(r"v?(\d+(\.\d+)*)", version or "")
    if version is not None and numbers is None:
        note = f"{name} {version} is not on file: defaults of {known.version}, the newest"
    elif numbers is not None:
        try:
            known, note = spec.at(numbers[1])
        except UnknownNameError as error:
            known = spec.versions[0] if "older" in error.what else known
            note = f"{error.what}: defaults of {known.version}, the nearest"
    return spec.running(flags.applied(known), release=version), note


def row_precision(run: Run, model: ModelSpec, hardware: HardwareSpec) -> Precision:
    """The formats of a run. Inputs of quantised layers are those that engines run the weights' format with.

    ``fp8``: 8-bit inputs; 4-bit floats: their own where the device has the arithmetic (mxfp4 experts: 8-bit), else the
    base format, as for ``int4``. A label alone names the linear weights and the experts
    (unless ``experts`` is stated); ``fp4`` is the checkpoint's
    own 4-bit format where it has one, else nvfp4. An empty ``kv`` is the engine's ``auto``, the base format. Of the two
    16-bit formats that one counts which the device multiplies. A GGUF file type (``q4_k_m``) is its mix.
    """
    mixed = run.weights is not None and is_file_type(run.weights)
    native = native_precision(model) if mixed else _served(native_precision(model), run)
    label = (run.precision or "native").lower()
    if run.weights is not None and mixed:
        precision = file_precision(model, run.weights)
    elif run.weights is None:
        precision = native if label == "native" else formats_of_label(label, native, hardware)
        if run.experts:
            precision = replace(precision, experts=_format(run.experts, native.experts))
    else:
        weights = _format(run.weights, native.weights)
        experts = _format(run.experts, native.experts) if run.experts else weights
        own = weights == native.weights and experts == native.experts
        tables: dict[str, Any] = {} if own else {"head": native.base, "embedding": native.base, "exceptions": ()}
        precision = replace(native, weights=weights, experts=experts, **tables)
    inputs = find_format(run.activations) if run.activations else _inputs(precision, hardware)
    keys = find_format(_CACHES.get(run.kv, run.kv)) if run.kv and run.kv != "auto" else precision.base
    return held_by(replace(precision, activations=inputs, kv=keys), hardware.peak)


def require_format(role: str, text: str) -> None:
    """Raise ``UsageError`` for what :func:`row_precision` could read as no format, on any device.

    role: ``weights``, ``experts``, ``kv``, or ``precision`` for a label of all.
    """
    name = text.lower()
    if role == "kv" and name == "auto":
        return
    if role == "precision":
        require_precision("nvfp4" if name == "fp4" else name)
    elif role != "weights" or not is_file_type(name):
        find_format(_CACHES.get(name, name))


_CACHES = {"f16": "fp16", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}


def _served(native: Precision, run: Run) -> Precision:
    """The formats as an engine loads them: 32-bit tensors in 16, the base in the row's own 16-bit format."""
    wide = find_format(run.weights) if run.weights and find_format(run.weights).bits == _WIDE else None
    base = wide or (native.base if native.base.bits <= _WIDE else find_format("bf16"))
    roles = {f.name: getattr(native, f.name) for f in fields(native) if f.name != "exceptions"}
    loaded: dict[str, Any] = {name: base if fmt.bits >= _WIDE else fmt for name, fmt in roles.items()}
    return replace(native, **loaded)


def _format(name: str, native: Format) -> Format:
    """A format by name; the checkpoint's own variant of it where there is one (``int4`` in groups of 32)."""
    fmt = find_format(name)
    return native if native.name.startswith(f"{fmt.name}-g") else fmt


def _inputs(precision: Precision, hardware: HardwareSpec) -> Format:
    """The narrowest inputs that a quantised role runs with."""
    candidates = [_input(fmt, precision.base, hardware) for fmt in (precision.weights, precision.experts)]
    return min(candidates, key=lambda fmt: fmt.bits)


def _input(weights: Format, base: Format, hardware: HardwareSpec) -> Format:
    if weights.bits >= base.bits:
        return base
    if weights.name == "mxfp4" and "fp4" in hardware.peak and "fp8" in hardware.peak:
        return find_format("fp8")
    if weights.math in ("fp8", "int8") and weights.math in hardware.peak:
        return find_format(weights.math)
    if weights.name == "nvfp4" and "fp4" in hardware.peak:
        return weights
    return base


def deployment_of(run: Run, calibration: str | None = None, ideal: bool = False) -> tuple[Deployment, tuple[str, ...]]:
    """The deployment of a run, and notes on what was taken instead of what the row says.

    Raises the errors of names that are unknown and of divisions or formats that cannot work.
    """
    model, hardware = model_of(run.model), hardware_of(run.gpu)
    flags = EngineFlags(
        token_budget=run.token_budget,
        max_sequences=run.slots,
        memory_fraction=run.memory_fraction,
        prefill_schedule_interval=run.waits.schedule,
        prefill_decode_interval=run.waits.rounds,
        enable_prefill_delayer=run.waits.delayer,
        prefill_delayer_max_delay_passes=run.waits.passes,
    )
    engine, note = engine_of(run.engine, run.engine_version, flags)
    precision = row_precision(run, model, hardware)
    exchange = _exchange(engine.exchange, precision, run.spread)
    deployment = Deployment(
        model=model,
        hardware=hardware,
        precision=precision,
        parallel=Parallelism(
            tp=run.tp,
            pp=run.pp,
            ep=run.ep,
            dp=run.dp,
            replicas=run.workers if run.prefill is None else 1,
            redundant=_copies(model, run.spread.slots, run.ep),
        ),
        engine=engine.model_copy(update={"exchange": exchange}),
        calibration=_calibration(run.gpu, run.library, calibration, ideal),
        routing=replace(routing_of(), in_order=run.spread.in_order),
    )
    deployment = with_backends(deployment, Backends(engine=run.library, chosen=run.backends, path=calibration))
    deployment = run.parts.over(deployment, run.model, run.gpu, run.weights)
    dense = (
        f"{model.name} has no routed experts to be in {run.experts}" if run.experts and not model.has_experts else ""
    )
    return deployment, tuple(filter(None, (note, dense, deployment.formats_note, deployment.calibration.note)))


def prompts_of(run: Run, decodes: Deployment) -> Deployment | None:
    """The deployment of a worker of the pool of prompts, beside those of ``decodes``; ``None`` where there is none."""
    pool = run.prefill
    if pool is None:
        return None
    copies = _copies(decodes.model, pool.expert_slots, pool.ep)
    flags = EngineFlags(token_budget=pool.token_budget, max_sequences=pool.slots, memory_fraction=pool.memory_fraction)
    engine = engine_of(run.engine, run.engine_version, flags)[0]
    exchange = _exchange(engine.exchange, decodes.precision, pool)
    return replace(
        decodes,
        parallel=Parallelism(tp=pool.tp, ep=pool.ep, dp=pool.dp, redundant=copies),
        engine=decodes.engine.model_copy(update={"defaults": engine.defaults, "exchange": exchange}),
    )


def _exchange(rules: ExchangeRules, precision: Precision, asked: Spread | PromptWorkers) -> ExchangeRules:
    """The engine's rules, but for how, and in which format, the workers of a pool are said to exchange tokens.

    Tokens that every rank gets travel in the base format where none is stated: they are quantised where they arrive.
    """
    changes: dict[str, Any] = {}
    if asked.exchange is not None:
        changes = {"prefill": asked.exchange, "decode": asked.exchange, "racks": None}
    formats = {} if asked.exchange in ("gather", "all_reduce") else rules.formats
    if asked.dispatch is not None:
        inputs = precision.linear_input(precision.experts)
        formats = formats | {inputs.name: find_format(asked.dispatch).name}
    return rules.model_copy(update=changes | {"formats": formats})


def drafts_of(run: Run, deployment: Deployment) -> Speculation:
    """The drafts of a run beside its model, accepted as was measured of that many; none where it has none.

    Raises ``UsageError`` for a head that the model does not have, ``MissingFactError`` where no acceptance is on file.
    """
    if run.draft is None or run.draft_tokens is None:
        return PLAIN
    alone = head_beside(deployment, run.draft)
    if alone is None:
        raise UsageError(f"{deployment.model.name} has no head {run.draft!r} to draft with")
    beside = alone.over(deployment.parallel)
    return measured_drafting(deployment.model, run.draft, run.draft_tokens).beside(beside)


def _copies(model: ModelSpec, slots: int, ep: int) -> int:
    """Redundant experts where ``slots`` places are stated for all; none where every expert has one place.

    Raises ``UsageError`` for fewer places than experts.
    """
    experts = max((weight.units for weight, _ in model.weights() if weight.shard == "experts"), default=0)
    if 0 < slots < experts:
        raise UsageError(f"redundant_experts {slots} are fewer places than the {experts} experts of {model.name}")
    return max(slots - experts, 0) if ep > 1 else 0
