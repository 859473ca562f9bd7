"""Several mixers that read the same input and whose outputs are added (Falcon-H1, 2507.22448 section 2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator

from inferplan.models.layers.base import Cache, LayerContext, Mixer, Weight
from inferplan.work.ops import Op
from inferplan.work.parallel import Parallelism


def _parse(value: Any) -> Any:
    from inferplan.models.layers import parse_layer

    return parse_layer(value)


AnyMixer = Annotated[SerializeAsAny[Mixer], BeforeValidator(_parse)]


def joint_cache(caches: Sequence[Cache]) -> Cache:
    """Caches of which at most one grows with tokens, and at most one keeps a state, as one."""
    tokens = next((c for c in caches if c.per_token), Cache())
    state = next((c for c in caches if c.state), Cache())
    return Cache(
        per_token=tokens.per_token,
        mask=tokens.mask,
        units=tokens.units,
        state=state.state,
        state_units=state.state_units,
        state_bits=state.state_bits,
        conv=state.conv,
        spare=state.spare,
    )


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
