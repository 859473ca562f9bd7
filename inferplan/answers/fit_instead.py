"""What would run where a model does not: whole commands, each tried."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from shlex import quote
from typing import Any, NamedTuple

from inferplan.answers.division import Asked, best_division, options_on, tpot_of
from inferplan.answers.fit import FitAsked, FitOption, fit_on, footprint_at, gpus_that_hold
from inferplan.catalog.assemble import assemble, load_engine
from inferplan.catalog.counted import Counted
from inferplan.catalog.files import load_hardware, load_model, names
from inferplan.catalog.offload import EXAMPLE_HOST, OffloadAsked
from inferplan.catalog.quality import cache_line, left_out, share_kept
from inferplan.errors import InfeasibleError, InferplanError
from inferplan.estimate.formats import native_precision
from inferplan.estimate.run import most_layers
from inferplan.models.gguf_formats import is_file_type, narrow_types
from inferplan.models.spec import ModelSpec
from inferplan.units import format_time

_SHORTEST = 512
"""Tokens of the shortest context that a hint names."""
_LLAMA, _FILE = "llama.cpp", "q4_k_m"
"""The engine that shares layers with the host, and the format of its file."""


_HOST_MEMORY = ("128GB", "192GB")
"""Of the host of an example, the smaller first."""
_SERIES = re.compile(r"(.+?)-(?:\d+x)?\d+(?:\.\d+)?[bm](?:-a\d+(?:\.\d+)?b)?(-.+)?")
"""The name of a model without its size: llama-3.1-70b is one of llama-3.1, qwen3-30b-a3b one of qwen3."""


class Question(NamedTuple):
    """What does not fit. model, have: as they were typed. meant: the GPUs. load: requests, and what else was asked."""

    spec: ModelSpec
    model: str
    have: str
    meant: Sequence[Counted]
    load: Asked

    def line(self, *more: str, on: str = "", **changed: Any) -> str:
        """A command that asks the same with other words, of which ``more`` stand behind it; ``None`` leaves one out."""
        model = changed.pop("model", self.model)
        line = self.load[1].line(model, on or f"--have {quote(self.have)}", **changed)
        return " ".join([line, *more])

    def options(self, model: str = "", context: int = 0, **changed: Any) -> list[FitOption]:
        """The options of another question that hold the load."""
        tokens, asked, prices = self.load
        spec = load_model(model) if model else self.spec
        tokens = min(context or tokens, spec.max_context or tokens)
        found = options_on(spec, model or self.model, self.meant, (tokens, replace(asked, **changed), prices))
        return [one for one in found if one.fitting]


def instead(asked: Question, refused: Sequence[FitOption]) -> str:
    """What runs on these GPUs instead, and where the model runs: a command on each line, each tried.

    refused: the options of the question, of which none holds it.
    """
    wider = [*_formats(asked)]
    found = [
        *wider,
        *_narrow_cache(asked),
        *_less(asked, refused),
        *_on_the_host(asked),
        *_smaller(asked),
        *([] if wider else _narrower(asked)),
    ]
    if not asked.load[1].lora.any:
        found.append(("every model that runs there", asked.line(model="", quant=None, engine=None)))
    lines = [*(f"{what}: {line}" for what, line in found), *gpus_that_hold(asked.model, *asked.load[1:])]
    return "\n  ".join(["what runs:", *lines])


Lines = Iterator[tuple[str, str]]
"""What runs, and the command that says how."""


def _formats(asked: Question) -> Lines:
    """Other formats than the one that was asked for, or of less quality, and what was published of each."""
    if asked.load[1].quant is not None or asked.load[1].quality is not None:
        for one in asked.options(quant=None, quality=None):
            said = share_kept(asked.spec, one.quant)[1]
            low = left_out(asked.spec, [one.quant], asked.load[1].quality)
            line = asked.line(quant=one.quant, quality=None if low else asked.load[1].quality)
            yield f"in {one.quant} (quality: {said})", line
    elif asked.load[1].engine != _LLAMA and asked.load[1].tp is None and not asked.load[1].lora.any:
        for one in asked.options(engine=_LLAMA)[:1]:
            yield f"{_LLAMA} in {one.quant}", asked.line(engine=_LLAMA)


def _narrow_cache(asked: Question) -> Lines:
    """The first format that holds the load with the 8 bits that an engine keeps of each element of the cache, the usual
    engine before that of GGUF files, of which another format than was asked for."""
    own, hardware = asked.load[1], load_hardware(asked.meant[0].gpu)
    if own.kv is not None or (own.quant and own.engine):
        return
    usual = own.request(asked.model, asked.meant[0].gpu).engine
    for engine in dict.fromkeys((usual, own.engine or _LLAMA)):
        kv = load_engine(engine).narrow_cache(hardware)
        other: dict[str, Any] = {"quant": None, "engine": engine} if own.quant and engine != usual else {}
        if kv and (found := asked.options(kv=kv, **other)):
            line = asked.line(kv=kv, **other | ({"quant": found[0].quant} if other else {}))
            yield f"with an 8-bit KV cache, in {found[0].quant}; {cache_line(kv)}", line
            return


def _less(asked: Question, refused: Sequence[FitOption]) -> Lines:
    """Fewer requests at once, or the longest that are held."""
    held = asked.load[1].held
    if held > 1 and (found := asked.options(users=1, people=None, think_time=0.0)):
        most = max(one.fitting.requests for one in found if one.fitting)
        yield "fewer requests at once", asked.line(in_flight=most)
    for length in sorted({one.longest for one in refused}, reverse=True):
        if length >= _SHORTEST and (found := asked.options(context=length)):
            yield f"shorter requests, in {found[0].quant}", asked.line(context=length)
            return


def _on_the_host(asked: Question) -> Lines:
    """Layers, or the experts of all of them, computed by a host: one GPU alone, of the quality asked for."""
    tokens, own, prices = asked.load
    (gpu, *others), spec = asked.meant, asked.spec
    if others or (gpu.number or 1) != 1 or own.lora.any or own.engine not in ("", _LLAMA):
        return
    native = native_precision(spec)
    file = None if spec.native.packed or min(native.weights.bits, native.experts.bits) < 8 else _FILE
    quant = own.quant if is_file_type(own.quant or "") else file
    question = replace(own, engine=_LLAMA, quant=quant, context=tokens)
    for size in _HOST_MEMORY:
        try:
            question = replace(question, offload=_placed(asked, question, gpu.gpu, size))
            found = fit_on(asked.model, gpu.gpu, question, prices)
            break
        except InferplanError:
            continue
    else:
        return
    placed, layers = question.offload, len(spec.sequence)
    seconds = tpot_of(question.request(asked.model, gpu.gpu), found, question, tokens)[0]
    slow = "" if seconds is None else f"; {format_time(seconds, 3)} per token"
    on = f"--cpu-moe-layers {layers}" if placed.cpu_moe_layers else f"--gpu-layers {placed.gpu_layers}"
    what = "all experts" if placed.cpu_moe_layers else f"{layers + 1 - (placed.gpu_layers or 0)} of {layers} layers"
    more = f"{on} --host {placed.host} --host-memory {placed.host_memory}"
    kept = f", in {quant} (quality: {share_kept(spec, quant)[1]})" if quant else ""
    line = asked.line(more, on=f"--gpu {gpu.gpu}", engine=_LLAMA, quant=quant)
    yield f"{what} on the host (name yours{slow}){kept}", line


def _placed(asked: Question, question: FitAsked, gpu: str, size: str) -> OffloadAsked:
    """All experts on the host; of a model without them the most layers on the GPU."""
    layers, host = len(asked.spec.sequence), OffloadAsked(host=EXAMPLE_HOST, host_memory=size)
    if asked.spec.has_experts:
        return replace(host, cpu_moe_layers=layers)
    half = replace(question, offload=replace(host, gpu_layers=layers // 2)).request(asked.model, gpu)
    most = most_layers(replace(footprint_at(assemble(half), asked.load[0]), batch=float(question.held)))
    if most is None or most > layers:
        raise InfeasibleError("no division between the GPU and this host holds it")
    return replace(host, gpu_layers=most)


def _smaller(asked: Question) -> Lines:
    """The largest smaller model of the same series."""
    series, total = _SERIES.fullmatch(asked.spec.name), asked.spec.parameters["total"]
    if series is None:
        return
    alike = [name for name in names("models") if (one := _SERIES.fullmatch(name)) and one.groups() == series.groups()]
    sizes = {name: load_model(name).parameters["total"] for name in alike}
    for name in sorted((name for name in alike if sizes[name] < total), key=lambda name: -sizes[name]):
        if asked.load[0] <= (load_model(name).max_context or asked.load[0]) and (found := asked.options(name)):
            yield f"the largest of its series that fits, in {found[0].quant}", asked.line(model=name)
            return


def _narrower(asked: Question) -> Lines:
    """The largest GGUF file under 5 bits per weight that holds the load, on the GPUs of one kind with most memory."""
    own = asked.load[1]
    if own.tp is not None or own.quality is not None:
        return
    question = replace(own, engine=own.engine or _LLAMA, quant=None)
    have = max(asked.meant, key=lambda one: load_hardware(one.gpu).memory.most)
    request, hardware = question.request(asked.model, have.gpu), load_hardware(have.gpu)
    if asked.spec.native.packed or not load_engine(request.engine).loads("gguf", hardware):
        return
    most = (have.number or 1) * hardware.memory.most * 8 / asked.spec.parameters["total"]
    load = (asked.load[0], question, asked.load[2])
    tried = {quant: best_division(have, request, quant, load).fitting for quant in narrow_types(most)}
    held = {quant: one.footprint.weights for quant, one in tried.items() if one is not None}
    if held:
        quant = max(held, key=lambda name: held[name])
        on = f" on {have.gpu}" if len(asked.meant) > 1 else ""
        few = f"in {quant}{on} (quality: none published; so few bits may make answers worse)"
        yield few, asked.line(engine=request.engine, quant=quant)
