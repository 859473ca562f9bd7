"""A part whose tensors and cache are known and whose time is not: ``docs/formulas/untimed.md``."""

from collections.abc import Iterator
from typing import ClassVar, Self

from inferplan.errors import MissingFactError
from inferplan.models.layers.base import Cache, FeedForward, LayerContext, Mixer, Weight
from inferplan.spec import Field, model_validator
from inferplan.work.ops import Mask, Op
from inferplan.work.parallel import Parallelism


class UntimedLayer(Mixer, FeedForward):
    """A mechanism that no operator here states: it is counted and kept in memory, and a time is refused by its name.

    Every tensor-parallel rank has it whole.
    """

    kind: ClassVar[str] = "untimed"
    summary: ClassVar[str] = "a part that is counted and kept, and has no time here"

    why: str = Field(min_length=1)
    """What it does that has no time: the reason of the refusal."""
    tensors: dict[str, list[int]] = {}
    """Every parameter tensor with its shape."""
    active: dict[str, float] = {}
    """The share of a tensor that one token reads, where that is not all of it."""
    per_token: int = Field(default=0, ge=0)
    """Cached elements of a token, or of every ``rate`` tokens together; ``window``: of the last so many."""
    rate: int = Field(default=1, ge=1)
    window: int | None = Field(default=None, ge=1)
    state: int = Field(default=0, ge=0)
    """Elements of constant size that a sequence keeps, all in the base format."""
    width: int = Field(default=0, ge=0)
    """Elements a token that are alive at once inside it."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        unknown = sorted(set(self.active) - set(self.tensors))
        if unknown:
            raise ValueError(f"active names no tensor: {', '.join(unknown)}")
        return self

    def weights(self, d_model: int) -> Iterator[Weight]:
        for name, shape in self.tensors.items():
            yield Weight(name=name, shape=tuple(shape), role="base", active=self.active.get(name, 1.0))

    def cache(self) -> Cache:
        mask = Mask() if self.window is None else Mask(kind="window", size=self.window)
        return Cache(per_token=self.per_token, rate=self.rate, mask=mask, state=self.state, conv=self.state)

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        return float(self.width)

    def ops(self, context: LayerContext) -> Iterator[Op]:
        raise MissingFactError(
            "the time of this model is not known",
            because=self.why,
            hint="its memory is: inferplan fit, and inferplan show for its counts",
        )


LAYER = UntimedLayer
