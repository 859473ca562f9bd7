"""Several mixers that read the same input and whose outputs are added (Falcon-H1, 2507.22448 section 2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from inferplan.models.layers.base import AnyMixer, Cache, LayerContext, Mixer, Weight, joint_cache
from inferplan.spec import Field, model_validator
from inferplan.work.ops import Op
from inferplan.work.parallel import Parallelism


class ParallelLayer(Mixer):
    """``y = sum_i mixer_i(x)``. At most one of them caches positions and at most one keeps a state."""

    kind: ClassVar[str] = "parallel"
    summary: ClassVar[str] = "several mixers on the same input"

    mixers: list[AnyMixer] = Field(min_length=2)

    @model_validator(mode="after")
    def _consistent(self) -> ParallelLayer:
        caches = [mixer.cache() for mixer in self.mixers]
        if sum(bool(c.per_token) for c in caches) > 1 or sum(bool(c.state) for c in caches) > 1:
            raise ValueError("two of the parallel mixers keep the same kind of cache")
        return self

    def dump(self) -> dict[str, object]:
        return {"kind": self.kind, "mixers": [mixer.dump() for mixer in self.mixers]}

    def weights(self, d_model: int) -> Iterator[Weight]:
        for mixer in self.mixers:
            yield from mixer.weights(d_model)

    def cache(self) -> Cache:
        return joint_cache([mixer.cache() for mixer in self.mixers])

    def check(self, parallel: Parallelism) -> None:
        for mixer in self.mixers:
            mixer.check(parallel)

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        return sum(mixer.live_width(d_model, parallel) for mixer in self.mixers)

    def ops(self, context: LayerContext) -> Iterator[Op]:
        for mixer in self.mixers:
            yield from mixer.ops(context)
        for _ in self.mixers[1:]:
            yield context.pointwise("mixer.add", context.d_model, reads=2.0)


LAYER = ParallelLayer
