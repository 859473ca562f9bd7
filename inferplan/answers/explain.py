"""Where a number comes from: its formula, the numbers put in, and the YAML line of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from inferplan.catalog import files as catalog
from inferplan.catalog.assemble import Request, assemble, calibration_file, shared_step
from inferplan.devices.constants import ANY
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import UnknownNameError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.phase import Phase
from inferplan.estimate.roofline import TERMS, OpCost
from inferplan.estimate.run import estimate
from inferplan.models.spec import LayerGroup
from inferplan.units import format_bytes, format_quantity, format_time
from inferplan.work.formats import FORMATS, Format
from inferplan.work.ops import Op


@dataclass(frozen=True, kw_only=True)
class Input:
    """One number that went in, and where it stands: a file with its line and field, an option, or a formula's name."""

    symbol: str
    value: str
    origin: str
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A number, the formula it came from, and what was put in. ``parts`` are the numbers it is made of."""

    name: str
    value: float
    unit: str
    formula: str
    substituted: str
    page: str
    inputs: tuple[Input, ...] = ()
    parts: tuple[tuple[str, str], ...] = ()

    @property
    def shown(self) -> str:
        """The value with its unit."""
        return show(self.value, self.unit)


def show(value: float, unit: str) -> str:
    """A value as people read it."""
    if unit == "s":
        return format_time(value)
    if unit == "B":
        return format_bytes(value)
    return format_quantity(value, unit) if unit in ("FLOP", "FLOP/B", "token/s") else f"{value:,.6g} {unit}".strip()


@dataclass(frozen=True, kw_only=True)
class Explainer:
    """Explains the numbers of one estimate: a request, resolved, with the files behind it."""

    request: Request
    load: StaticLoad

    @cached_property
    def estimate(self) -> Estimate:
        return estimate(assemble(self.request), self.load)

    @cached_property
    def model_file(self) -> Path:
        return catalog.find("models", self.request.model)

    @cached_property
    def hardware_file(self) -> Path:
        return catalog.find("hardware", self.request.gpu)

    @cached_property
    def engine_file(self) -> Path:
        return catalog.find("engines", self.request.engine.partition("@")[0])

    def names(self) -> list[str]:
        """Every number that can be explained."""
        phases = (("prefill", self.estimate.prefill), ("decode", self.estimate.decode))
        inner = [f"{phase}.{part}" for phase, _ in phases for part in _PHASE_PARTS]
        operators = [f"{phase}.{name}" for phase, priced in phases for name in priced.by_operator()]
        return [*_NUMBERS, *inner, *operators]

    def explain(self, name: str) -> Explanation:
        """The explanation of one number. Raises ``UnknownNameError`` with the close ones."""
        name = _ALIASES.get(name, name)
        if name in _NUMBERS:
            return _NUMBERS[name](self)
        phase_name, _, rest = name.partition(".")
        rest = _ALIASES.get(rest, rest)
        phases: dict[str, Phase] = {"prefill": self.estimate.prefill, "decode": self.estimate.decode}
        if phase_name in phases:
            phase = phases[phase_name]
            if rest in _PHASE_PARTS:
                return self._phase_part(phase_name, phase, rest)
            for operator in (rest, _fused(rest)):
                matching = _runs(phase, operator)
                if matching:
                    return self._operator(f"{phase_name}.{operator}", phase, matching)
            if rest == "host" and "host" in phase.by_operator():
                return self._host(name, phase)
        known = self.names()
        close = get_close_matches(name, known, n=4, cutoff=0.4)
        raise UnknownNameError(
            f"no number named {name!r} in this estimate",
            hint=f"did you mean {', '.join(close)}?" if close else f"one of {', '.join(known)}",
        )

    # --- where inputs stand -------------------------------------------------------------------------------------------

    def _at(self, path: Path, *field: str | int) -> str:
        line = catalog.line_of(path, field)
        return f"{_short(path)}:{line}: {'.'.join(map(str, field))}" if line else f"{_short(path)}: {field}"

    def hardware_input(self, symbol: str, value: str, *field: str | int) -> Input:
        return Input(
            symbol=symbol,
            value=value,
            origin=self._at(self.hardware_file, *field),
            source=self.estimate.deployment.hardware.source,
        )

    def model_input(self, symbol: str, value: Any, *field: str | int) -> Input:
        return Input(
            symbol=symbol,
            value=str(value),
            origin=self._at(self.model_file, *field),
            source=self.estimate.deployment.model.source,
        )

    def load_inputs(self) -> tuple[Input, ...]:
        load = self.load
        return tuple(
            Input(symbol=name, value=f"{value:g}", origin=f"--{name}")
            for name, value in (("batch", load.batch), ("prompt", load.prompt), ("output", load.output))
        )

    def layer_inputs(self, wanted: Callable[[LayerGroup], Any]) -> Iterator[Input]:
        """Every field of the parts that ``wanted`` picks from each different layer, with its line."""
        seen: list[Any] = []
        for path, group in _walk(self.estimate.deployment.model.layers, ("layers",)):
            part = wanted(group)
            if part is None or part in seen:
                continue
            seen.append(part)
            where = "mixer" if part is group.mixer else "ffn"
            for name, value in part.dump().items():
                yield self.model_input(name, value, *path, where, name)
            if group.repeat > 1:
                yield self.model_input("repeat", group.repeat, *path, "repeat")

    def format_input(self, role: str, fmt: Format) -> Input:
        origin = (
            "formats asked for" if self.request.quant or self.request.roles else "the checkpoint's formats (native)"
        )
        return Input(
            symbol=f"{role} width",
            value=f"{fmt.width:.6g} B ({fmt.name})",
            origin=f"{origin}; layout in inferplan/work/formats.py",
            source=FORMATS[fmt.name].source if fmt.name in FORMATS else fmt.source,
        )

    # --- numbers ------------------------------------------------------------------------------------------------------

    def _operator(self, name: str, phase: Phase, costs: list[OpCost]) -> Explanation:
        deployment, op = self.estimate.deployment, costs[0].op
        total = float(sum(np.max(cost.total) for cost in costs) * np.max(phase.microbatches))
        formula = (op.__class__.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
        lines = [_substituted(cost) for cost in costs]
        inputs: list[Input] = []
        inputs += self.layer_inputs(lambda group: _owner(group, op))
        if op.name in ("embedding", "head", "sampling"):
            inputs.append(self.model_input("vocab", deployment.model.vocab, "vocab"))
        inputs.append(self.model_input("d_model", deployment.model.d_model, "d_model"))
        inputs += [self.format_input(f.name, v) for f in fields(op) if isinstance(v := getattr(op, f.name), Format)]
        if op.math:
            peak = deployment.hardware.peak_of(op.math)
            inputs.append(self.hardware_input("peak", format_quantity(peak, "FLOP/s"), "peak", op.math))
        if op.kind == "collective":
            link = deployment.hardware.link(int(getattr(op, "span", 2)))
            index = deployment.hardware.links.index(link)
            bandwidth = format_quantity(link.bandwidth, "B/s")
            inputs.append(self.hardware_input(link.name, bandwidth, "links", index, "bandwidth"))
        else:
            inputs.append(self._bandwidth())
        inputs += self._constants(op)
        inputs += self.load_inputs()
        return Explanation(
            name=name,
            value=total,
            unit="s",
            formula=f"{op.kind}: {formula} Time: overhead + (math^p + memory^p)^(1/p), the larger when p is infinite",
            substituted="; ".join(lines),
            page=f"docs/operators/{op.kind}.md",
            inputs=tuple(inputs),
            parts=tuple((f"basis {cost.basis}", f"{cost.op.count:g} runs") for cost in costs),
        )

    def _constants(self, op: Op) -> list[Input]:
        """The fitted constants of an operator's kernel; none where it is priced at the bare roofline."""
        deployment = self.estimate.deployment
        fit = deployment.calibration.fit(op.kernel, op.label)
        if fit is None:
            return []
        place = self._place_of(op, deployment.hardware)
        step = deployment.calibration.step
        within = f" (x {step.launch:g} within a step, configs/step.yaml)" if step == shared_step().step else ""
        shown = {
            "math": ("share of peak", f"{fit.math:.4g}"),
            "memory": ("share of bandwidth", f"{fit.memory:.4g}"),
            "overhead": ("overhead a run", format_time(fit.overhead if fit.overhead > 1e-12 else 0.0) + within),
            "sharpness": ("p", f"{fit.sharpness:.4g}"),
        }
        shown = {key: pair for key, pair in shown.items() if key in fit.model_fields_set}
        source = f"{fit.source or op.kernel}: {fit.n:,} measurements" if fit.n else fit.source
        found = [
            Input(symbol=symbol, value=value, origin=place(key), source=source)
            for key, (symbol, value) in shown.items()
        ]
        for name, constant in fit.terms.items():
            term = TERMS[name]
            each = format_time(constant) if term.effect == "seconds" else f"{constant:.4g}"
            value = f"{each} x {float(np.max(term.count(op, deployment.hardware))):.4g} ({term.counted})"
            found.append(Input(symbol=f"further: {name}", value=value, origin=place("terms", name), source=source))
        return found

    def _place_of(self, op: Op, hardware: HardwareSpec) -> Callable[..., str]:
        """Where a constant of an operator's kernel stands: the engine's own library first, as it was chosen."""
        file = calibration_file(hardware, self.request.calibration)
        assert file is not None  # an operator with constants has them from a file
        data = catalog.read_yaml(file)
        engine = self.request.engine.partition("@")[0]
        libraries = data.get("libraries", {})
        books = [("libraries", name) for name in sorted(libraries, key=lambda name: name != engine)]
        for label in (op.label, op.label.rsplit("-d", 1)[0], ANY):
            for book in [*books, ("constants",)]:
                found = libraries.get(book[1], {}) if len(book) > 1 else data.get("constants", {})
                if label in found.get(op.kernel, {}):
                    return lambda *key: self._at(file, *book, op.kernel, label, *key)
        raise KeyError(f"{op.kernel}/{op.label} in {file}")  # as the fit was found

    def _bandwidth(self) -> Input:
        bandwidth = self.estimate.deployment.hardware.memory.bandwidth
        return self.hardware_input("bandwidth", format_quantity(bandwidth, "B/s"), "memory", "bandwidth")

    def _phase_part(self, name: str, phase: Phase, part: str) -> Explanation:
        value = {
            "time": phase.time,
            "flop": phase.flop,
            "bytes": phase.bytes,
            "intensity": phase.intensity,
            "mfu": phase.mfu,
            "mbu": phase.mbu,
        }[part]
        unit, formula = _PHASE_PARTS[part]
        peak = phase.deployment.hardware.peak_of(phase.deployment.math)
        numbers = {
            "time": f"{' + '.join(format_time(float(t)) for t in phase.by_operator().values())}",
            "flop": " + ".join(
                format_quantity(float(c.work.flop * c.op.count * c.op.ranks * phase.microbatches), "")
                for c in phase.costs
            ),
            "bytes": " + ".join(
                format_bytes(float(c.work.bytes * c.op.count * c.op.ranks * phase.microbatches)) for c in phase.costs
            ),
            "intensity": f"{float(phase.flop):.6g} FLOP / {float(phase.bytes):.6g} B",
            "mfu": f"{float(phase.flop):.6g}/({float(phase.time):.6g} s * {peak:.6g} * "
            f"{phase.deployment.parallel.ranks})",
            "mbu": f"{float(phase.resident):.6g} B/({float(phase.time):.6g} s * "
            f"{phase.deployment.hardware.memory.bandwidth:.6g} * {phase.deployment.parallel.ranks})",
        }[part]
        parts = [(operator, format_time(float(time))) for operator, time in phase.by_operator().items()]
        return Explanation(
            name=f"{name}.{part}",
            value=float(value),
            unit=unit,
            formula=formula,
            substituted=numbers,
            page="docs/formulas/roofline.md",
            inputs=(self._bandwidth(), *self.load_inputs()),
            parts=tuple(parts),
        )

    def _host(self, name: str, phase: Phase) -> Explanation:
        step = self.estimate.deployment.calibration.step
        return Explanation(
            name=name,
            value=float(phase.by_operator()["host"]),
            unit="s",
            formula="host = a step + each sequence * sequences + each layer * layers of the slowest stage * rounds",
            substituted=f"{format_time(step.host)} + {format_time(step.sequence)} * {float(phase.sequences[0]):g} + "
            f"{format_time(step.layer)} * {phase.layers[_slowest(phase)]} * {float(phase.microbatches):g}",
            page="docs/formulas/roofline.md",
            inputs=self.load_inputs(),
        )

    def _kv_per_token(self) -> Explanation:
        footprint, parallel = self.estimate.footprint, self.estimate.deployment.parallel
        width = self.estimate.deployment.precision.kv.width
        return Explanation(
            name="memory.kv_per_token",
            value=footprint.kv_per_token,
            unit="B",
            formula="KV cache of one more token on this device = sum over its layers of elements * share * width, "
            "below every window",
            substituted=" + ".join(
                f"{count} * {cache.per_token} * {cache.copies(cache.units, parallel.tp) / parallel.cp:g} * {width:g}"
                for cache, count in footprint.stage.caches
                if cache.per_token
            )
            or "0",
            page="docs/concepts/kv-cache.md",
            inputs=(
                self.format_input("kv", self.estimate.deployment.precision.kv),
                *self.layer_inputs(lambda group: group.mixer),
            ),
        )

    def _ttft(self) -> Explanation:
        prefill = self.estimate.prefill
        return Explanation(
            name="ttft",
            value=float(self.estimate.ttft),
            unit="s",
            formula="TTFT = the prefill of the whole batch = sum of its operators (no queue: the batch is alone)",
            substituted=" + ".join(format_time(float(time)) for time in prefill.by_operator().values()),
            page="docs/concepts/two-phases.md",
            inputs=self.load_inputs(),
            parts=tuple((f"prefill.{name}", format_time(float(t))) for name, t in prefill.by_operator().items()),
        )

    def _tpot(self) -> Explanation:
        decode = self.estimate.decode
        return Explanation(
            name="tpot",
            value=float(self.estimate.tpot),
            unit="s",
            formula="TPOT = mean over i = 1 .. output - 1 of the decode step with prompt + i - 1 tokens behind it",
            substituted=f"from {format_time(float(self.estimate.tpot_start))} at {self.load.prompt:.0f} tokens to "
            f"{format_time(float(self.estimate.tpot_end))} at {self.load.context - 2:.0f} tokens",
            page="docs/concepts/two-phases.md",
            inputs=self.load_inputs(),
            parts=tuple((f"decode.{name}", format_time(float(t))) for name, t in decode.by_operator().items()),
        )

    def _e2el(self) -> Explanation:
        result = self.estimate
        return Explanation(
            name="e2el",
            value=float(result.e2el),
            unit="s",
            formula="total latency = TTFT + (output - 1) * TPOT: the prefill gives the first token",
            substituted=f"{format_time(float(result.ttft))} + "
            f"{self.load.output - 1:.0f} * {format_time(float(result.tpot))}",
            page="docs/concepts/two-phases.md",
            inputs=self.load_inputs(),
        )

    def _rate(self) -> Explanation:
        result, replicas = self.estimate, self.estimate.deployment.parallel.replicas
        return Explanation(
            name="output_tokens_per_s",
            value=float(result.output_rate),
            unit="token/s",
            formula="output tokens a second = replicas * batch * output / total latency",
            substituted=f"{replicas} * {self.load.batch:g} * {self.load.output:g} / {float(result.e2el):.6g} s",
            page="docs/concepts/batching.md",
            inputs=self.load_inputs(),
        )

    def _ridge(self) -> Explanation:
        deployment = self.estimate.deployment
        peak = deployment.hardware.peak_of(deployment.math)
        return Explanation(
            name="ridge",
            value=deployment.ridge,
            unit="FLOP/B",
            formula="ridge point = peak / bandwidth",
            substituted=f"{peak:.6g} FLOP/s / {deployment.hardware.memory.bandwidth:.6g} B/s",
            page="docs/concepts/roofline.md",
            inputs=(
                self.hardware_input("peak", format_quantity(peak, "FLOP/s"), "peak", deployment.math),
                self._bandwidth(),
            ),
        )

    def _weights(self) -> Explanation:
        stage = self.estimate.footprint.stage
        tensors: dict[str, float] = {}
        for weight, count, layer in stage.tensors():
            tensors[weight.name] = tensors.get(weight.name, 0.0) + float(stage.tensor_bytes(weight, layer)) * count
        precision = self.estimate.deployment.precision
        return Explanation(
            name="memory.weights",
            value=stage.weights,
            unit="B",
            formula="weights = sum over tensors of elements on this rank * width of its role's format",
            substituted=" + ".join(format_bytes(size) for size in tensors.values()),
            page="docs/formulas/memory.md",
            inputs=(
                *(
                    self.format_input(role, getattr(precision, role))
                    for role in ("weights", "experts", "embedding", "head")
                ),
                self.model_input("d_model", self.estimate.deployment.model.d_model, "d_model"),
                self.model_input("vocab", self.estimate.deployment.model.vocab, "vocab"),
                *self.layer_inputs(lambda group: group.mixer),
                *self.layer_inputs(lambda group: group.ffn),
                Input(
                    symbol="parallel", value=self.estimate.deployment.parallel.describe(), origin="--tp --pp --ep --dp"
                ),
            ),
            parts=tuple((name, format_bytes(size)) for name, size in tensors.items()),
        )

    def _kv(self) -> Explanation:
        footprint = self.estimate.footprint
        batch, context = float(np.max(self.load.batch)), float(np.max(self.load.context))
        return Explanation(
            name="memory.kv",
            value=float(footprint.state),
            unit="B",
            formula="KV cache = sequences on this rank * sum over layers of (cached tokens * elements * width), "
            "and the recurrent state",
            substituted=f"{batch:g} * {format_bytes(float(footprint.state) / max(batch, 1.0))} a sequence; "
            f"below every window {format_bytes(footprint.kv_per_token)} a token * {context:g} tokens + "
            f"{format_bytes(footprint.state_per_sequence)}",
            page="docs/concepts/kv-cache.md",
            inputs=(
                self.format_input("kv", self.estimate.deployment.precision.kv),
                *self.layer_inputs(lambda group: group.mixer),
                *self.load_inputs(),
            ),
        )

    def _activations(self) -> Explanation:
        footprint, engine = self.estimate.footprint, self.estimate.deployment.engine
        tokens, rows = footprint.step()
        index = self._engine_index()
        per_logit = engine.defaults.sampler_bytes_per_logit
        vocab = self.estimate.deployment.model.vocab
        return Explanation(
            name="memory.activations",
            value=float(footprint.activations),
            unit="B",
            formula="activations = max(tokens of a step * live width * base width, sequences * vocab * bytes a logit)",
            substituted=f"max({float(tokens):g} * {footprint.stage.live_width:g} * "
            f"{self.estimate.deployment.precision.base.width:g}, {float(rows):g} * {vocab} * {per_logit:g})",
            page="docs/formulas/memory.md",
            inputs=(
                self._engine_input("tokens, sequences", f"{float(tokens):g}, {float(rows):g}", index, "tiers"),
                self._engine_input("bytes a logit", f"{per_logit:g}", index, "sampler_bytes_per_logit"),
            ),
        )

    def _reserve(self) -> Explanation:
        footprint, defaults = self.estimate.footprint, self.estimate.deployment.engine.defaults
        index = self._engine_index()
        communicator = defaults.communicator if self.estimate.deployment.parallel.ranks > 1 else 0.0
        return Explanation(
            name="memory.reserve",
            value=footprint.reserve,
            unit="B",
            formula=f"reserve = context + communicator (several devices) + graphs + what the fraction leaves "
            f"({defaults.kv_rule})",
            substituted=f"{format_bytes(defaults.context)} + {format_bytes(communicator)} + "
            f"{format_bytes(defaults.graphs)} + (1 - {defaults.memory_fraction or footprint.memory_fraction}) * "
            f"{format_bytes(footprint.usable)}",
            page="docs/formulas/memory.md",
            inputs=(
                self._engine_input("fraction", str(defaults.memory_fraction), index, "memory_fraction"),
                self._engine_input("context", format_bytes(defaults.context), index, "context"),
                self._engine_input("graphs", format_bytes(defaults.graphs), index, "graphs"),
                self._usable(),
            ),
        )

    def _engine_index(self) -> int:
        versions = catalog.read_yaml(self.engine_file)["versions"]
        wanted = self.estimate.deployment.engine.defaults.version
        return next(i for i, entry in enumerate(versions) if str(entry["version"]) == wanted)

    def _engine_input(self, symbol: str, value: str, index: int, field: str) -> Input:
        origin = self._at(self.engine_file, "versions", index, field)
        return Input(symbol=symbol, value=value, origin=origin, source=self.estimate.deployment.engine.defaults.source)

    def _usable(self) -> Input:
        memory = self.estimate.deployment.hardware.memory
        if self.request.memory:
            return Input(symbol="usable", value=format_bytes(memory.usable or 0.0), origin="--memory")
        return self.hardware_input("usable", format_bytes(memory.usable or 0.0), "memory", "usable")

    def _total(self) -> Explanation:
        footprint = self.estimate.footprint
        parts = {
            "memory.weights": footprint.weights,
            "memory.kv": float(footprint.state),
            "memory.activations": float(footprint.activations),
            "memory.reserve": footprint.reserve,
        }
        return Explanation(
            name="memory.total",
            value=float(footprint.total),
            unit="B",
            formula="total = weights + KV cache and state + activations + reserve",
            substituted=" + ".join(format_bytes(size) for size in parts.values()),
            page="docs/formulas/memory.md",
            inputs=(self._usable(),),
            parts=tuple((name, format_bytes(size)) for name, size in parts.items()),
        )

    def _max_batch(self) -> Explanation:
        footprint = self.estimate.footprint
        per_sequence = float(footprint.state) / max(float(np.max(self.load.batch)), 1.0)
        return Explanation(
            name="max_batch",
            value=float(footprint.max_batch()),
            unit="sequences",
            formula="largest batch = floor((usable - weights - activations - reserve) / state at prompt + output)",
            substituted=f"floor({format_bytes(footprint.kv_pool)} / {format_bytes(per_sequence)})",
            page="docs/concepts/sequence-length.md",
            inputs=(self._usable(), *self.load_inputs()),
        )

    def _max_context(self) -> Explanation:
        footprint = self.estimate.footprint
        limit = self.estimate.deployment.model.max_context
        inputs = [self._usable(), *self.load_inputs()]
        if limit:
            inputs.append(self.model_input("max_context", limit, "max_context"))
        return Explanation(
            name="max_context",
            value=float(footprint.max_context()),
            unit="tokens",
            formula="longest context = the most tokens with batch * state(tokens) <= pool, up to the model's limit",
            substituted=f"{format_bytes(footprint.kv_pool)} / "
            f"({self.load.batch:g} * {format_bytes(footprint.kv_per_token)})",
            page="docs/concepts/sequence-length.md",
            inputs=tuple(inputs),
        )


_PHASE_PARTS = {
    "time": ("s", "time = sum over operators of runs * time, of the slowest pipeline stage, times its rounds"),
    "flop": ("FLOP", "FLOP = sum over operators and ranks"),
    "bytes": ("B", "bytes = sum over operators and ranks of reads and writes in device memory"),
    "intensity": ("FLOP/B", "arithmetic intensity = FLOP / bytes"),
    "mfu": ("", "MFU = FLOP / (time * peak * ranks)"),
    "mbu": ("", "MBU = (weights + state read) / (time * bandwidth * ranks)"),
}
_NUMBERS: dict[str, Callable[[Explainer], Explanation]] = {
    "ttft": Explainer._ttft,
    "tpot": Explainer._tpot,
    "e2el": Explainer._e2el,
    "output_tokens_per_s": Explainer._rate,
    "ridge": Explainer._ridge,
    "memory.weights": Explainer._weights,
    "memory.kv": Explainer._kv,
    "memory.kv_per_token": Explainer._kv_per_token,
    "memory.activations": Explainer._activations,
    "memory.reserve": Explainer._reserve,
    "memory.total": Explainer._total,
    "max_batch": Explainer._max_batch,
    "max_context": Explainer._max_context,
}


_ALIASES = {
    "ttft_s": "ttft",
    "tpot_s": "tpot",
    "e2el_s": "e2el",
    "ridge_flop_per_byte": "ridge",
    "max_context_tokens": "max_context",
    "memory.weights_bytes": "memory.weights",
    "memory.kv_bytes": "memory.kv",
    "memory.kv_bytes_per_token": "memory.kv_per_token",
    "memory.activation_bytes": "memory.activations",
    "memory.reserve_bytes": "memory.reserve",
    "memory.total_bytes": "memory.total",
    "time_s": "time",
    "intensity_flop_per_byte": "intensity",
}
"""Keys of the JSON, to the names of what they hold."""
_FUSED = {"gate": "gate_up", "up": "gate_up", "q": "qkv", "k": "qkv", "v": "qkv", "o": "out"}
"""Tensors, to the operator that multiplies them together."""


def _short(path: Path) -> str:
    """A shipped file by its place under ``configs``; any other path as given."""
    try:
        return f"configs/{path.relative_to(catalog.config_root())}"
    except ValueError:
        return str(path)


def _walk(groups: list[LayerGroup], path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], LayerGroup]]:
    for index, group in enumerate(groups):
        here = (*path, index)
        if group.pattern:
            yield from _walk(group.pattern, (*here, "pattern"))
        else:
            yield here, group


def _fused(operator: str) -> str:
    """The operator that runs a tensor's matmul: ``ffn.up`` is half of ``ffn.gate_up``."""
    prefix, dot, last = operator.rpartition(".")
    return f"{prefix}{dot}{_FUSED.get(last, last)}"


def _slowest(phase: Phase) -> int:
    """The pipeline stage that a phase's time and its operators' times are those of."""
    return int(np.argmax([float(np.max(time)) for time in phase.stage_times]))


def _runs(phase: Phase, operator: str) -> list[OpCost]:
    """An operator's runs on the slowest stage; where it has none, on the first stage that has."""
    for costs in (phase.stages[_slowest(phase)], *phase.stages):
        found = [cost for cost in costs if cost.op.name == operator]
        if found:
            return found
    return []


def _owner(group: LayerGroup, op: Op) -> Any:
    """The part of a layer that an operator's dotted name belongs to."""
    prefix = op.name.partition(".")[0]
    if prefix == "ffn":
        return group.ffn
    return group.mixer if prefix not in ("embedding", "head", "sampling", "norm", "residual", "pipeline") else None


def _substituted(cost: OpCost) -> str:
    op = cost.op
    skip = {"name", "ranks", "fusible", "count"}
    values = ", ".join(f"{f.name} {_plain(getattr(op, f.name))}" for f in fields(op) if f.name not in skip)
    work = cost.work
    pieces = [f"[{values}]"]
    if np.max(work.flop) > 0:
        pieces.append(f"{format_quantity(float(work.flop), 'FLOP')} -> {format_time(float(cost.time_math))}")
    if np.max(work.bytes) > 0:
        pieces.append(f"{format_bytes(float(work.bytes))} -> {format_time(float(cost.time_memory))}")
    if np.max(work.wire) > 0:
        pieces.append(f"{format_bytes(float(work.wire))} on the wire -> {format_time(float(cost.time_wire))}")
    if np.max(cost.overhead) > 0:
        pieces.append(f"overhead {format_time(float(cost.overhead))}")
    pieces.append(f"one run {format_time(float(cost.time))} x {op.count:g} runs")
    return " ".join([pieces[0], *(f"| {piece}" for piece in pieces[1:])])


def _plain(value: Any) -> str:
    if isinstance(value, Format):
        return value.name
    if isinstance(value, float):
        return f"{value:g}"
    kind = getattr(value, "kind", None)
    return f"{kind} {value.size}" if kind and hasattr(value, "size") and value.size else str(kind or value)
