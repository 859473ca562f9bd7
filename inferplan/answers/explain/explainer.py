"""Explains the numbers of one estimate: asks the model for their terms, and where each input stands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import numpy as np

from inferplan.answers.energy import StaticEnergy
from inferplan.answers.explain.bases import STEPS, bases
from inferplan.answers.explain.explanation import ExplainedPart, Explanation, Input
from inferplan.answers.explain.origins import Origins
from inferplan.answers.explain.switches import of_first_token, of_operator, of_users
from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import UnknownNameError, UsageError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import ridge_terms
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.phase import Phase
from inferplan.estimate.roofline import OpCost
from inferplan.estimate.run import carrying, estimate
from inferplan.models.spec import LayerGroup
from inferplan.serving.cold_start import read_at_start
from inferplan.serving.first_token import FirstToken
from inferplan.serving.techniques.applied import Techniques, served_estimate, served_first_token
from inferplan.terms import Field, Term, name_term, show
from inferplan.work.formats import Format
from inferplan.work.ops import Op

_MEMORY = {
    "memory.weights": ("weights", "docs/formulas/memory.md"),
    "memory.adapters": ("adapters", "docs/lora.md"),
    "memory.kv": ("state", "docs/concepts/kv-cache.md"),
    "memory.kv_per_token": ("kv_per_token", "docs/concepts/kv-cache.md"),
    "memory.activations": ("activations", "docs/formulas/memory.md"),
    "memory.reserve": ("reserve", "docs/formulas/memory.md"),
    "memory.kv_pool": ("kv_pool", "docs/concepts/kv-cache.md"),
    "memory.total": ("total", "docs/formulas/memory.md"),
    "max_batch": ("max_batch", "docs/concepts/sequence-length.md"),
    "max_context": ("max_context", "docs/concepts/sequence-length.md"),
}
"""Numbers of the fullest device: what its footprint calls them, and the page."""
_BYTES = tuple(name for name in _MEMORY if name.startswith("memory.") and name != "memory.adapters")
"""Those of them that the host has too, where part of the model lies there: ``host.memory.weights``."""
_BATCH = {
    "ttft": "docs/concepts/two-phases.md",
    "tpot": "docs/concepts/two-phases.md",
    "e2el": "docs/concepts/two-phases.md",
    "output_tokens_per_s": "docs/concepts/batching.md",
}
"""Numbers of the whole batch, and the page."""
_PARTS = ("time", "flop", "bytes", "intensity", "mfu", "mbu")
"""Numbers of a phase beside its operators."""
_LARGEST = 5
"""Operators that are named with the latency that they make."""
_ALIASES = {
    "latency": "e2el",
    "ttft_s": "ttft",
    "ttft_at_server_s": "ttft_at_server",
    "tpot_s": "tpot",
    "e2el_s": "e2el",
    "ridge_flop_per_byte": "ridge",
    "max_context_tokens": "max_context",
    "memory.weights_bytes": "memory.weights",
    "memory.adapter_bytes": "memory.adapters",
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


@dataclass(frozen=True, kw_only=True)
class Explainer:
    """Explains the numbers of one estimate: a request, resolved, with the files behind it."""

    request: Request
    load: StaticLoad
    techniques: Techniques = Techniques()

    @cached_property
    def estimate(self) -> Estimate:
        (deployment, load), asked = carrying(assemble(self.request), self.load), self.techniques
        return served_estimate(deployment, load, asked) if asked.any else estimate(deployment, load)

    @cached_property
    def origins(self) -> Origins:
        return Origins(request=self.request, deployment=self.estimate.deployment)

    @property
    def phases(self) -> dict[str, Phase]:
        found = {"prefill": self.estimate.prefill}
        return found if self.estimate.deployment.model.encodes else found | {"decode": self.estimate.decode}

    def names(self) -> list[str]:
        """Every number that can be explained; without a time per output token where there is one token only."""
        lacks = set() if np.all(np.asarray(self.estimate.load.output) > 1) else {"tpot"}
        lacks |= {"output_tokens_per_s"} if self.estimate.deployment.model.encodes else set()
        batch = [name for name in _BATCH if name not in lacks]
        there = [] if self.estimate.footprint.host is None else [f"host.{name}" for name in _BYTES]
        inner = [f"{name}.{part}" for name in self.phases for part in _PARTS]
        operators = [f"{name}.{operator}" for name, phase in self.phases.items() for operator in phase.by_operator()]
        server = [] if self._first is None else ["ttft_at_server"]
        memory = [name for name in _MEMORY if name != "memory.adapters" or self.estimate.deployment.lora is not None]
        energy = [] if self._energy is None else self._energy.numbers()
        return [*batch, *server, "ridge", "cold_start", *memory, *there, *energy, *inner, *operators]

    def explain(self, name: str) -> Explanation:
        """The explanation of one number.

        Raises ``UnknownNameError`` with the close ones, and ``UsageError`` for the time per output token of a single
        token.
        """
        found = self._found(_ALIASES.get(name, name))
        return replace(found, rests_on=bases(self.estimate, found.name))

    def _found(self, name: str) -> Explanation:
        """The formula, its numbers and its inputs."""
        there, own = self.estimate.footprint.host, name.removeprefix("host.")
        if there is not None and own != name and own in _BYTES:
            number, page = _MEMORY[own]
            return self._explanation(name, there.terms(number), page, self._shapes(own))
        if name in _MEMORY and (name != "memory.adapters" or self.estimate.deployment.lora is not None):
            number, page = _MEMORY[name]
            return self._explanation(name, self.estimate.footprint.terms(number), page, self._shapes(name))
        if name in _BATCH:
            found = self._explanation(name, self.estimate.terms(name), _BATCH[name], self._given())
            further = of_users(self.estimate.deployment, self._budget) if name == "tpot" else ()
            return _with_parts(found, (*self._largest(name), *_switches(further)))
        if name == "cold_start":
            return self._cold_start()
        if name == "ttft_at_server":
            return self._at_server()
        if name == "ridge":
            return self._explanation(name, ridge_terms(self.estimate.deployment), "docs/concepts/roofline.md")
        if self._energy is not None and name in self._energy.numbers():
            return self._explanation(name, self._energy.terms(name), "docs/power.md", self._given())
        phase_name, _, rest = name.partition(".")
        rest = _ALIASES.get(rest, rest)
        phase = self.phases.get(phase_name)
        if phase is not None and rest in _PARTS:
            page = "docs/formulas/step.md" if rest == "time" else "docs/formulas/roofline.md"
            return self._explanation(f"{phase_name}.{rest}", phase.terms(rest), page, self._given())
        for operator in (rest, _fused(rest)):
            if phase is not None and operator in phase.by_operator():
                return self._operator(phase_name, phase, operator)
        known = self.names()
        close = get_close_matches(name, known, n=4, cutoff=0.4)
        raise UnknownNameError(
            f"no number named {name!r} in this estimate",
            hint=f"did you mean {', '.join(close)}?" if close else f"one of {', '.join(known)}",
        )

    def _explanation(self, name: str, term: Term, page: str, further: Iterable[Input] = ()) -> Explanation:
        """A term's formula, numbers and parts; its inputs with their places, and ``further`` ones."""
        phase = name.partition(".")[0]
        leaves = [(leaf, leaf.field[0] in ("number", "part")) for leaf in term.inputs() if leaf.field]
        explained = [ExplainedPart(name=leaf.name, value=leaf.shown) for leaf, elsewhere in leaves if elsewhere]
        made = [
            ExplainedPart(name=part.name, value=part.shown, formula=part.formula, substituted=part.numbers)
            for part in term.parts()
        ]
        inputs = [self.origins.of(leaf, phase) for leaf, _ in leaves]
        return Explanation(
            name=name,
            value=float(np.max(term.value)),
            unit=term.unit,
            formula=f"{term.name} = {term.formula if term.operation else term.numbers}",
            substituted=term.numbers,
            page=page,
            inputs=tuple(dict.fromkeys([*inputs, *further])),
            parts=tuple(dict.fromkeys([*explained, *made])),
        )

    def _largest(self, latency: str) -> Iterable[ExplainedPart]:
        """The operators that take most of the step that a latency is of, each a number of its own."""
        step = STEPS.get(latency, "")
        if (phase := self.phases.get(step)) is None:
            return
        seconds = {operator: float(np.max(spent)) for operator, spent in phase.by_operator().items()}
        of = f"of {'the prefill' if step == 'prefill' else 'a decode step at the mean context'}"
        for operator in sorted(seconds, key=lambda one: -seconds[one])[:_LARGEST]:
            share = f"{seconds[operator] / sum(seconds.values()):.0%} {of}"
            yield ExplainedPart(name=f"{step}.{operator}", value=show(seconds[operator], "s"), formula=share)

    def _cold_start(self) -> Explanation:
        """What a new replica reads when it starts; seconds take rates that no file has."""
        term = read_at_start(self.estimate.deployment, name_term)
        found = self._explanation("cold_start", name_term(term, "cold_start", "B"), "docs/day.md", ())
        how = "start-up of the engine + cold_start / bandwidth of the storage: day --engine-start --storage-bandwidth"
        return _with_parts(found, [ExplainedPart(name="seconds", value="", formula=how)])

    @cached_property
    def _energy(self) -> StaticEnergy | None:
        """Of the batch, where it is known."""
        try:
            return StaticEnergy(estimate=self.estimate) if self.estimate.deployment.hardware.power else None
        except UsageError:
            return None

    @cached_property
    def _first(self) -> FirstToken | None:
        return served_first_token(self.estimate, self.techniques)

    def _at_server(self) -> Explanation:
        """The first token of one request on an idle server, part by part. Raises ``UsageError`` where it is unknown."""
        if self._first is None:
            raise UsageError(
                f"no constants are known for the TTFT at the server under {self.estimate.deployment.engine.describe()}",
                hint="ttft is the TTFT of the batch alone; --engine vllm, sglang or trtllm have constants on file",
            )
        alone: Field = ("number", "ttft") if np.all(np.asarray(self.load.batch) == 1) else ()
        term = self._first.terms(self.estimate.deployment, self.estimate.load.prompt, alone)
        found = self._explanation("ttft_at_server", term, "docs/glossary.md", self._given())
        return _with_parts(found, _switches(of_first_token(self.estimate.deployment, self._budget)))

    @property
    def _budget(self) -> int:
        """Tokens of a step."""
        deployment = self.estimate.deployment
        return self.techniques.chunk or deployment.engine.defaults.tier(deployment.hardware).token_budget

    def _operator(self, phase_name: str, phase: Phase, operator: str) -> Explanation:
        """Seconds of an operator, with what kind it is and the shape of its first kernel."""
        cost = next((cost for cost in phase.costs if cost.op.name == operator), None)
        name, term = f"{phase_name}.{operator}", phase.terms(operator)
        if cost is None:  # the host's share, which is no kernel
            return self._explanation(name, term, "docs/formulas/step.md", self._given())
        op, deployment = cost.op, self.estimate.deployment
        if deployment.media is not None and (inputs := self._tower(operator)):
            return self._with_kernel(self._explanation(name, term, "docs/media.md", [*inputs, *self._given()]), cost)
        further = [*self.origins.layers(lambda group: _owner(group, op))]
        if op.name.startswith(("traced.ahead.", "traced.behind.")):
            further = [*self.origins.around(op.name.split(".")[1])]
        if op.name in ("embedding", "head") or op.name.startswith("sampling"):
            further.append(self.origins.model("vocab", deployment.model.vocab, "vocab"))
        further.append(self.origins.model("d_model", deployment.model.d_model, "d_model"))
        formats = ((field.name, getattr(op, field.name)) for field in fields(op))
        further += [self.origins.format(role, value) for role, value in formats if isinstance(value, Format)]
        page = f"docs/operators/{op.kind}.md"
        return self._with_kernel(self._explanation(name, term, page, [*further, *self._given()]), cost)

    def _with_kernel(self, found: Explanation, cost: OpCost) -> Explanation:
        """What kind of kernel it is, its shape, and where another takes over."""
        op = cost.op
        does = (op.__class__.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
        kernel = (
            ExplainedPart(name=op.kind, value="", formula=does),
            ExplainedPart(name="shape", value="", formula=_shape(op)),
        )
        return _with_parts(found, (*kernel, *_switches(of_operator(op, cost.fit, self.estimate.deployment))))

    def _tower(self, operator: str) -> list[Input]:
        """The fields of the tower that an operator belongs to, and what is put through it; none for another."""
        model, media = self.estimate.deployment.model, self.estimate.deployment.media
        index = next((i for i, tower in enumerate(model.towers) if operator.startswith(f"{tower.name}.")), None)
        if index is None or media is None:
            return []
        tower, where = model.towers[index], ("towers", index)
        inputs = [self.origins.model("d_model", tower.d_model, *where, "d_model")]
        rule = None if tower.media is None else tower.media.image
        for name in ("patch", "merge", "size") if rule is not None else ():
            if (value := getattr(rule, name)) is not None:
                inputs.append(self.origins.model(name, value, *where, "media", "image", name))
        return [*inputs, Input(symbol="media", value=media.asked.describe(), origin="--images --video-frames ...")]

    def _given(self) -> list[Input]:
        """The load that was asked for."""
        load = self.estimate.load
        given = [("batch", load.batch), ("prompt", load.prompt), ("output", load.output)]
        given += [("samples", load.samples)] if load.samples > 1 else []
        return [Input(symbol=name, value=f"{value:g}", origin=f"--{name}") for name, value in given]

    def _shapes(self, name: str) -> list[Input]:
        """The fields of the model that a number of memory follows from, beyond those its formula names."""
        model = self.estimate.deployment.model
        if name == "memory.weights":
            roles = ("weights", "experts", "embedding", "head")
            widths = [self.origins.format(role, getattr(self.estimate.deployment.precision, role)) for role in roles]
            sizes = [self.origins.model(field, getattr(model, field), field) for field in ("d_model", "vocab")]
            layers = [*self.origins.layers(lambda group: group.mixer), *self.origins.layers(lambda group: group.ffn)]
            division = Input(
                symbol="parallel", value=self.estimate.deployment.parallel.describe(), origin="--tp --pp --ep --dp"
            )
            return [*widths, *sizes, *layers, division]
        if name in ("memory.kv", "memory.kv_per_token"):
            return [*self.origins.layers(lambda group: group.mixer), *self._given()]
        return []


def _fused(operator: str) -> str:
    """The operator that runs a tensor's matmul: ``ffn.up`` is half of ``ffn.gate_up``."""
    prefix, dot, last = operator.rpartition(".")
    return f"{prefix}{dot}{_FUSED.get(last, last)}"


def _owner(group: LayerGroup, op: Op) -> Any:
    """The part of a layer that an operator's dotted name belongs to."""
    prefix = op.name.partition(".")[0]
    if prefix == "ffn":
        return group.ffn
    return group.mixer if prefix not in ("embedding", "head", "sampling", "norm", "residual", "pipeline") else None


def _with_parts(found: Explanation, parts: Iterable[ExplainedPart]) -> Explanation:
    return replace(found, parts=(*found.parts, *parts))


def _switches(texts: Iterable[str]) -> tuple[ExplainedPart, ...]:
    """Where one unit of work more makes a time leap or fall, each a part of its own."""
    return tuple(ExplainedPart(name="switch", value="", formula=text) for text in texts)


def _shape(op: Op) -> str:
    """The sizes and formats of an operator; where it runs and where its weights lie, if that is not the device."""
    skip = {"name", "ranks", "fusible", "count", *(() if op.far else ("far",))}
    return ", ".join(
        f"{field.name} {_plain(getattr(op, field.name))}"
        for field in fields(op)
        if field.name not in skip and (field.name, op.place) != ("place", "device")
    )


def _plain(value: Any) -> str:
    if isinstance(value, Format):
        return value.name
    if isinstance(value, float):
        return f"{value:g}"
    kind = getattr(value, "kind", None)
    return f"{kind} {value.size}" if kind and hasattr(value, "size") and value.size else str(kind or value)
