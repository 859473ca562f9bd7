"""Whole models: which steps to time on a kind of device, and their times, eager and replayed from graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from calibrate.designs import THIN, find_model
from calibrate.device.measurer import Timer
from calibrate.device.memory import MODEL
from calibrate.kernels.decoder import FusedMaps, WholeModel, compiled_too_often
from calibrate.samples import StepSample
from inferplan.models.spec import ModelSpec
from inferplan.units import format_bytes

GRAPH, EAGER = "graph", "eager"


CPU_LAYERS = 4
"""Layers of a model of the user's own on a CPU, as many as the tiny models have: all of them would take minutes."""


def wanted(kind: str, memory: float, fmt: str = "bf16", own: Sequence[str] = ()) -> list[StepSample]:
    """The steps to time on a kind of device; a model too large for ``memory`` [B] is cut to the layers that fit.

    Two of the thin model come first: what a layer costs the host beside its operators. Then those of the user's own
    models, by the name or the path that was given.
    """
    models: tuple[str, ...]
    modes: tuple[str, ...]
    if kind == "cuda":
        models = ("llama-3.1-8b", "olmoe-1b-7b-0924", "deepseek-v2-lite")
        loads = [(1, 512, 0), (1, 2048, 0), (4, 2048, 0), (1, 8192, 0)]
        loads += [(batch, 1, past) for past in (512, 4096) for batch in (1, 8, 32, 128)]
        modes = (GRAPH, EAGER)
    else:
        models = ("tiny-dense", "tiny-moe", "tiny-mla")
        loads = [(1, 64, 0), (1, 256, 0), (4, 128, 0), (1, 1, 255), (8, 1, 255), (32, 1, 511)]
        modes = (EAGER,)
    steps: list[StepSample] = []
    if kind != "mps":
        steps += [replace(_wanted(THIN, layers, EAGER, (1, 1, 15)), format=fmt) for layers in (2, 18)]
    for name in (*own, *(name for name in models if name not in own)):
        spec = find_model(name)
        per_layer = weight_bytes(spec) / len(spec.sequence)
        layers = min(len(spec.sequence), int(0.45 * memory / per_layer))
        if name in own and kind != "cuda":
            layers = min(layers, CPU_LAYERS)
        for batch, new, past in loads:
            steps += [replace(_wanted(name, layers, mode, (batch, new, past)), format=fmt) for mode in modes]
    return steps


def _wanted(model: str, layers: int, mode: str, load: tuple[int, int, int]) -> StepSample:
    batch, new, past = load
    return StepSample(
        model=model, layers=layers, mode=mode, batch=batch, new=new, past=past, format="bf16", seconds=0.0
    )


def shortened(spec: ModelSpec, layers: int) -> ModelSpec:
    """The model with its first layers only."""
    if layers >= len(spec.sequence):
        return spec
    given = {name: getattr(spec, name) for name in spec.model_fields_set}
    return ModelSpec(**given | {"layers": spec.sequence[:layers]})


def weight_bytes(spec: ModelSpec) -> float:
    """Bytes of a model's weights in a 16-bit format."""
    return sum(float(w.elements * count) for w, count in spec.weights()) * 2.0


def cache_bytes(spec: ModelSpec, asked: StepSample) -> float:
    """Bytes of a step's cache in a 16-bit format."""
    return 2.0 * spec.kv_elements_per_token * asked.batch * (asked.past + asked.new)


class WholeModels:
    """Steps of whole models on a kind of device. One model is kept; a step of another takes its place."""

    def __init__(self, kind: str, timer: Timer) -> None:
        self.kind, self.timer = kind, timer
        self._maps: FusedMaps | None = None
        self._kept: tuple[tuple[str, int, str], WholeModel] | None = None

    def time(self, asked: StepSample, seconds: float) -> StepSample:
        """The step, timed for about ``seconds``: replays by device events, eager steps by the wall clock.

        Raises ``MemoryError`` when the model does not fit.
        """
        try:
            return self._timed(asked, seconds)
        except torch.OutOfMemoryError as error:
            self._forget()
            raise MemoryError(str(error).splitlines()[0]) from None
        except Exception as error:
            if not compiled_too_often(error):
                raise
            self._forget()  # the maps run as they are from here on, and every record says so
            self._maps = FusedMaps(note="eager: compiled for too many shapes")
            return self.time(asked, seconds)

    def _timed(self, asked: StepSample, seconds: float) -> StepSample:
        model = self._model(asked)
        model.caches = []  # the cache of the last load goes before that of this one comes
        self._require(cache_bytes(model.spec, asked), f"a cache of {asked.batch} x {asked.past + asked.new} tokens")
        (tokens,) = model.prepare(asked.batch, asked.new, asked.past)
        with torch.inference_mode():
            model.step(tokens, asked.past)
            time = self.timer.replays if asked.mode == GRAPH else self.timer.laps
            laps = time(lambda: model.step(tokens, asked.past), seconds)
        sample = laps.sample("")
        return replace(
            asked,
            seconds=sample.seconds,
            spread=sample.spread,
            laps=sample.laps,
            waited=sample.waited,
            disturbed=sample.disturbed,
            maps=model.maps.note,
        )

    def _require(self, size: float, what: str) -> None:
        """Raise ``MemoryError`` when the device has less left than ``size`` bytes and room to compute with them."""
        self.timer.release()
        free = MODEL * self.timer.free()
        if size > free:
            raise MemoryError(f"{what} takes {format_bytes(size)} of the {format_bytes(free)} that may be taken")

    def _model(self, asked: StepSample) -> WholeModel:
        """The model that is kept when it is the one asked for; otherwise a new one in its place."""
        key = (asked.model, asked.layers, asked.format)
        if self._kept is None or self._kept[0] != key:
            self._forget()
            if self._maps is None:
                self._maps = FusedMaps.on(self.kind)
            spec = shortened(find_model(asked.model), asked.layers)
            self._require(weight_bytes(spec), f"{asked.model} with {asked.layers} layers")
            self._kept = (key, WholeModel(spec, self.kind, asked.format, self._maps))
        return self._kept[1]

    def _forget(self) -> None:
        self._kept = None
        self.timer.release()
