"""How one model is divided over devices, and what divides what."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from inferplan.errors import IndivisibleError, UsageError
from inferplan.fields import Switch, Whole, ask

MOST_DEGREE = 10**6
"""The largest degree of parallelism and number of replicas that anything here can mean."""


def divisors(number: int) -> list[int]:
    """Every divisor, smallest first."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """Degrees of parallelism of one replica, and how many replicas.

    tp: tensor (heads, feed-forward width, vocabulary). pp: pipeline stages. ep: expert groups; the experts live on all
    ``tp*dp`` ranks of a stage, whole ones in each of ``ep`` groups, each sliced over the ``tp*dp/ep`` ranks of its
    group. dp: attention data parallelism (each rank group has its own sequences; attention weights are copied). cp:
    context (queries of a prefill, cached keys of a decode). replicas: independent copies behind a balancer. redundant:
    slots beyond the experts, which hold copies of the most popular ones (EPLB). spread_dense: with attention data
    parallelism dense feed-forwards are divided over all ``tp*dp`` ranks, which gather their tokens, and not over ``tp``
    with copies elsewhere.
    """

    tp: int = ask("--tp", Whole(), "Tensor parallelism.", 1, shown=True)
    pp: int = ask("--pp", Whole(), "Pipeline stages.", 1, shown=True)
    ep: int = ask("--ep", Whole(), "Expert groups (each expert is sliced over tp*dp/ep ranks).", 1, shown=True)
    dp: int = ask("--dp", Whole(), "Attention data parallelism.", 1, shown=True)
    cp: int = ask("--cp", Whole(), "Context parallelism.", 1, shown=True)
    replicas: int = ask("--replicas", Whole(), "Independent copies behind a load balancer.", 1, shown=True)
    redundant: int = ask(
        "--redundant-experts",
        Whole(0),
        "Slots for copies of popular experts (EPLB), beyond one per expert.",
        0,
        shown=True,
    )
    spread_dense: bool = ask(
        "--spread-dense", Switch(), "With --dp: divide dense layers over all ranks, which gather their tokens.", False
    )

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "ep", "dp", "cp", "replicas"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} must be 1 or more, not {getattr(self, name)}")
            if getattr(self, name) > MOST_DEGREE:
                raise UsageError(f"--{name} {getattr(self, name)} is more than {MOST_DEGREE:,}, the most of one system")
        if (self.tp * self.dp) % self.ep:
            raise IndivisibleError(
                f"--ep {self.ep} does not divide the {self.tp * self.dp} ranks that hold experts (tp x dp)",
                hint=f"--ep one of {', '.join(map(str, divisors(self.tp * self.dp)))}, or also --tp {self.ep}",
            )
        if self.redundant < 0:
            raise UsageError(f"--redundant-experts must be 0 or more, not {self.redundant}")
        if self.spread_dense and self.dp == 1:
            raise UsageError(
                "--spread-dense divides dense layers over attention ranks, and --dp 1 is one", hint="--dp 2"
            )

    @property
    def dense_ranks(self) -> int:
        """Devices that share the columns of a dense feed-forward."""
        return self.tp * (self.dp if self.spread_dense else 1)

    @property
    def stage_ranks(self) -> int:
        """Devices of one pipeline stage."""
        return self.tp * self.dp * self.cp

    @property
    def ranks(self) -> int:
        """Devices of one replica."""
        return self.stage_ranks * self.pp

    @property
    def devices(self) -> int:
        return self.ranks * self.replicas

    @property
    def expert_ranks(self) -> int:
        """Devices of a stage that share the experts between them."""
        return self.tp * self.dp

    @property
    def expert_tp(self) -> int:
        """How many ranks one expert is sliced over."""
        return self.expert_ranks // self.ep

    def expert_slots(self, experts: int) -> int:
        """Slots of the fullest group of experts: those of its own, and of copies."""
        return -(-(experts + self.redundant) // self.ep)

    def describe(self) -> str:
        """``"tp 4, pp 2"``; ``"1 device"`` when nothing is divided."""
        parts = [f"{n} {getattr(self, n)}" for n in ("tp", "pp", "ep", "dp", "cp", "replicas") if getattr(self, n) > 1]
        parts += [f"{self.redundant} redundant experts"] if self.redundant else []
        parts += ["dense layers over all ranks"] if self.spread_dense else []
        return ", ".join(parts) or "1 device"


def require_divides(option: str, degree: int, units: int, of_what: str) -> None:
    """Raise ``IndivisibleError`` unless ``degree`` divides ``units``; the hint lists the degrees that do."""
    if units % degree:
        options = ", ".join(str(d) for d in divisors(units) if d <= 64)
        raise IndivisibleError(
            f"--{option} {degree} does not divide {units} {of_what}", hint=f"--{option} one of {options}"
        )


def require_slots(parallel: Parallelism, experts: int) -> None:
    """Raise ``IndivisibleError`` unless every expert group can hold a slot, and copies fill all groups evenly.

    Balancers pack as many slots on every rank (vLLM ``fused_moe/layer.py``, SGLang ``fused_moe_triton/layer.py``).
    """
    slots = experts + parallel.redundant
    if parallel.ep > slots:
        raise IndivisibleError(
            f"--ep {parallel.ep} is more than the {slots} slots of {experts} experts",
            hint=f"--ep at most {experts}, or --redundant-experts {parallel.ep - experts}",
        )
    if parallel.redundant and slots % parallel.ep:
        raise IndivisibleError(
            f"--ep {parallel.ep} does not divide {experts} experts and {parallel.redundant} redundant ones",
            because="every rank holds as many slots as the others where experts are copied",
            hint=f"--redundant-experts {_redundant(parallel.ep, experts)}, or --ep one of {_degrees(slots)}",
        )


def require_even(parallel: Parallelism, experts: int, engine: str, copies: bool) -> None:
    """Raise ``IndivisibleError`` where expert groups differ in size, under an engine that has them all alike.

    copies: whether the engine has slots for redundant experts, which would even them out.
    """
    if (experts + parallel.redundant) % parallel.ep:
        even = f"--ep one of {_degrees(experts)}"
        raise IndivisibleError(
            f"--ep {parallel.ep} does not divide {experts} experts",
            because=f"{engine} holds as many on every rank",
            hint=f"--redundant-experts {_redundant(parallel.ep, experts)}, or {even}" if copies else even,
        )


def _degrees(units: int) -> str:
    return ", ".join(str(d) for d in divisors(units))


def _redundant(ep: int, experts: int) -> str:
    """The two smallest numbers of copies with which ``ep`` groups are alike."""
    least = -experts % ep
    return " or ".join(str(number) for number in (least, least + ep) if number)


def split_layers(layers: int, stages: int) -> list[int]:
    """Layers per pipeline stage: an even split whose remainder goes to the stages before the last.

    The last stage also has the head, the first the embedding (the rule of vLLM's ``get_pp_indices``). Raises
    ``IndivisibleError`` when there are more stages than layers.
    """
    if stages > layers:
        raise IndivisibleError(f"--pp {stages} is more than the model's {layers} layers", hint=f"--pp at most {layers}")
    counts = [layers // stages] * stages
    for extra in range(layers % stages):
        counts[(stages - 2 - extra) % stages] += 1
    return counts
