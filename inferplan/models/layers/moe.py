"""Mixture of experts with top-k routing and shared experts (1701.06538 eq. 1-5; DeepSeekMoE 2401.06066 eq. 9-11)."""

from collections.abc import Iterator
from typing import ClassVar, Self

from inferplan.affine import dense
from inferplan.models.exchange import exchange, meeting
from inferplan.models.layers.base import Activation, FeedForward, LayerContext, Weight
from inferplan.models.layers.mlp import mlp_ops
from inferplan.spec import Field, model_validator
from inferplan.units import Num
from inferplan.work.ops import Elementwise, GroupedMatmul, Op
from inferplan.work.parallel import Parallelism, require_divides, require_slots
from inferplan.work.routing import Busiest, busiest, distinct_experts, place_in_order


class MoeLayer(FeedForward):
    """``top_k`` of ``experts`` feed-forwards of width ``d_ff`` for each token, and ``shared_d_ff`` columns for all.

    Which experts tokens reach, and how many the busiest rank: :mod:`inferplan.work.routing`.
    """

    kind: ClassVar[str] = "moe"
    summary: ClassVar[str] = "mixture of experts, routed and shared"

    experts: int = Field(ge=1)
    top_k: int = Field(ge=1)
    groups: int = Field(default=1, ge=1)
    """Equal groups of experts that a token chooses among first (DeepSeek's ``n_group``)."""
    top_groups: int = Field(default=1, ge=1)
    """How many of the groups its experts may lie in (``topk_group``)."""
    d_ff: int = Field(ge=1)
    gated: bool = True
    activation: Activation = "silu"
    shared_d_ff: int = Field(default=0, ge=0)
    """Columns of the shared experts together."""
    shared_gate: bool = False
    """A sigmoid gate of width 1 on the shared expert (Qwen2-MoE)."""
    router_bias: bool = False
    """A bias that is a parameter; a correction bias kept as a buffer is not counted (docs/model-coverage.md)."""
    router_scales: bool = False
    """A weight for each input of the router and one for each expert (Gemma 4)."""
    expert_bias: bool = False
    router_width: int | None = Field(default=None, ge=1)
    """The router is a network of this width: a way in, a norm, two layers with biases, and the choice (Zaya)."""
    shared_routes: int = Field(default=0, ge=0)
    """Shared experts that the router weighs too: a row of it each (Inkling)."""
    out_bias: bool = False
    """One bias of the sum of all experts (JetMoE)."""
    zero_experts: int = Field(default=0, ge=0)
    """Further experts that the router may choose and that give back their input: no weights, no work (LongCat)."""
    latent: int | None = Field(default=None, ge=1)
    """Experts work in this width, with a projection into it and out of it (Nemotron 3 latent experts)."""
    latent_norms: bool = False
    """RMS norms of that width: of what goes into the experts, and of what comes out of each (Muse Spark)."""
    latent_sum_norm: bool = False
    """One RMS norm of that width, of the sum of the experts (Kimi-K3): ranks add their shares up ahead of it."""

    skew: float | None = Field(default=None, ge=0.0, le=3.0)
    """Measured standard deviation of the logarithm of its experts' popularity; its source stands beside it."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.latent_norms or self.latent_sum_norm) and self.latent is None:
            raise ValueError(
                "latent_norms and latent_sum_norm are norms of the width that experts work in: latent is missing"
            )
        if self.top_k > self.choices:
            raise ValueError(f"top_k {self.top_k} is more than the {self.choices} experts")
        if self.experts % self.groups or self.top_groups > self.groups:
            raise ValueError(
                f"a token cannot choose {self.top_groups} of {self.groups} groups of {self.experts} experts"
            )
        return self

    @property
    def choices(self) -> int:
        """Experts that the router knows, those without weights among them."""
        return self.experts + self.zero_experts

    @property
    def chosen(self) -> float:
        """Experts with weights that a token reaches; where some have none, its share of them at even routing."""
        return self.top_k * self.experts / self.choices if self.zero_experts else self.top_k

    def weights(self, d_model: int) -> Iterator[Weight]:
        width, share = self.latent or d_model, self.chosen / self.experts
        yield from self._router(d_model)
        if self.router_scales:
            yield Weight(name="router.scales", shape=(d_model + self.experts,), role="base")
        if self.latent:
            yield Weight(name="latent.in", shape=(self.latent, d_model))
            yield Weight(name="latent.out", shape=(d_model, self.latent))
            if self.latent_norms:
                yield Weight(name="latent.norms", shape=(2, self.latent), role="base")
            if self.latent_sum_norm:
                yield Weight(name="latent.norm", shape=(self.latent,), role="base")
        for name in ("gate", "up") if self.gated else ("up",):
            yield self._expert(f"expert.{name}", (self.experts, self.d_ff, width), share)
        yield self._expert("expert.down", (self.experts, width, self.d_ff), share)
        if self.expert_bias:
            inner = self.d_ff * (2 if self.gated else 1)
            yield Weight(name="expert.bias", shape=(self.experts, inner + width), role="base", active=share)
        if self.out_bias:
            yield Weight(name="out.bias", shape=(d_model,), role="base")
        if self.shared_d_ff:
            for name in ("gate", "up") if self.gated else ("up",):
                yield Weight(
                    name=f"shared.{name}", shape=(self.shared_d_ff, d_model), shard="tp", units=self.shared_d_ff
                )
            yield Weight(name="shared.down", shape=(d_model, self.shared_d_ff), shard="tp", units=self.shared_d_ff)
        if self.shared_gate:
            yield Weight(name="shared.router", shape=(1, d_model), role="base")

    def _router(self, d_model: int) -> Iterator[Weight]:
        """What chooses the experts."""
        wide = self.router_width
        if wide is not None:
            yield Weight(name="router_in", shape=(wide, d_model), role="base")
            yield Weight(name="router_hidden", shape=(2, wide, wide), role="base")
            yield Weight(name="router_hidden.vectors", shape=(4 * wide,), role="base")  # three biases and a norm
        yield Weight(name="router", shape=(self.choices + self.shared_routes, wide or d_model), role="base")
        if self.router_bias:
            yield Weight(name="router.bias", shape=(self.choices,), role="base")

    def _expert(self, name: str, shape: tuple[int, ...], share: float) -> Weight:
        return Weight(name=name, shape=shape, role="experts", shard="experts", units=self.experts, active=share)

    def check(self, parallel: Parallelism) -> None:
        require_slots(parallel, self.experts)
        require_divides("tp", parallel.expert_tp, self.d_ff, "expert columns (d_ff)")
        if self.shared_d_ff:
            require_divides("tp", parallel.tp, self.shared_d_ff, "shared-expert columns")

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        routed = self.chosen * (
            (3 if self.gated else 2) * self.d_ff / parallel.expert_tp + 2 * (self.latent or d_model)
        )
        return routed / parallel.ep * parallel.dp + (3 if self.gated else 2) * self.shared_d_ff / parallel.tp

    def ops(self, context: LayerContext) -> Iterator[Op]:
        parallel, d_model = context.parallel, context.d_model
        yield from self._route(context)
        if self.shared_d_ff:
            yield from mlp_ops(context, "ffn.shared", self.shared_d_ff // parallel.tp, self.gated)
        width = self.latent or d_model
        if self.latent:
            yield from context.linear("ffn.latent_in", d_model, self.latent)
        if self.latent_norms:
            yield context.normalise("ffn.latent_norm", width, style="rms")
        yield from exchange(context, self, "dispatch", width)
        yield from self._routed(context, width)
        yield from exchange(context, self, "combine", width)
        if self.latent_sum_norm:
            # routed and shared sums travel together, each in its own width (SGLang kimi_k3.py, the fused front)
            yield from context.all_reduce("ffn.all_reduce", width + (d_model if self.shared_d_ff else 0))
            yield context.normalise("ffn.latent_norm", width, style="rms")
        if self.latent:
            yield from context.linear("ffn.latent_out", self.latent, d_model)
        if not self.latent_sum_norm:
            yield from context.all_reduce("ffn.all_reduce", d_model)

    def _route(self, context: LayerContext) -> Iterator[Op]:
        wide = self.router_width
        if wide is not None:
            yield from context.linear("ffn.router_in", context.d_model, wide, role="base")
            yield context.normalise("ffn.router_norm", wide, style="rms")
            for _ in range(2):
                yield from context.linear("ffn.router_hidden", wide, wide, role="base")
            yield context.pointwise("ffn.router_activation", 2 * wide, flops=4.0)
        rows = self.choices + self.shared_routes
        yield from context.linear("ffn.router", wide or context.d_model, rows, role="base")

    def _routed(self, context: LayerContext, width: int) -> Iterator[Op]:
        parallel, precision = context.parallel, context.precision
        rows, found = self._load(context)
        columns = self.d_ff // parallel.expert_tp
        # DeepEP's low-latency kernels narrow tokens as they send them, and sum what comes back by its weights
        how, sent = meeting(context, self, "dispatch") if parallel.dp > 1 else ("normal", precision.base)
        sums, narrowed = how == "low_latency", how == "low_latency" and sent != precision.base
        sizes = {"gate_up" if self.gated else "up": (width, columns * (1 + self.gated)), "down": (columns, width)}
        # without expert parallelism each rank has a slice of every expert: it gathers the tokens of all attention ranks
        # and brings their rows into order itself, as one that has all tokens anyway; an exchange brings rows by expert
        exchanged = parallel.dp > 1 and parallel.ep > 1
        for name, (k, n) in sizes.items():
            wide = name == "down"
            weight = precision.stored("experts", f"expert.{name.partition('_')[0]}")
            inputs = precision.linear_input(weight)
            if inputs != precision.base and (wide or not narrowed):
                yield context.quantise(f"ffn.expert.{name}.quantise", rows * k, inputs)
            yield GroupedMatmul(
                name=f"ffn.expert.{name}",
                ranks=context.ranks,
                m=rows,
                k=k,
                n=n,
                experts=parallel.expert_slots(self.experts),
                touched=found,
                weight=weight,
                input=inputs,
                output=precision.base,
                exchanged=exchanged,
                reordered="" if exchanged else "output" if wide else "input",
            )
            if wide and self.latent_norms:
                yield context.normalise("ffn.expert.norm", width, rows=rows, style="rms")
            if wide and sums:
                continue
            yield Elementwise(
                name="ffn.expert.combine" if wide else "ffn.expert.activation",
                ranks=context.ranks,
                fusible=True,
                tokens=rows,
                width=width if wide else columns,
                base=precision.base,
                reads=1.0 if wide else 1.0 + self.gated,
                flops=2.0 if wide else 4.0 + self.gated,
            )

    def _load(self, context: LayerContext) -> tuple[Num, Num]:
        """Rows, and distinct experts, of the busiest rank; of the mean rank where routing is even."""
        parallel, tokens = context.parallel, context.stage_tokens
        skew = context.routing.skew_of(self.skew)
        if parallel.ep == 1 or context.routing.even:
            found = distinct_experts(self.experts, self.chosen, tokens, skew)
            return tokens * self.chosen / parallel.ep, found / parallel.ep
        most = self._busiest(context)
        return most.rows(tokens), most.touched(tokens)

    def _busiest(self, context: LayerContext) -> Busiest:
        parallel, routing = context.parallel, context.routing
        unforeseen = routing.unforeseen if any(segment.wide for segment in context.segments) else 0.0
        skew = routing.skew_of(self.skew)
        if routing.in_order:
            return place_in_order(self.experts, self.chosen, parallel.ep, parallel.redundant, skew)
        return busiest(self.experts, self.chosen, parallel.ep, parallel.redundant, skew, unforeseen)

    def crowding(self, context: LayerContext) -> Num:
        """Rows of the busiest group of experts over those of the mean one."""
        if context.parallel.ep == 1 or context.routing.even:
            return 1.0
        tokens = dense(context.stage_tokens)
        rows: Num = self._busiest(context).rows(tokens) * context.parallel.ep / (tokens * self.chosen)
        return rows


LAYER = MoeLayer
