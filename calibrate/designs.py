"""Which models and which loads the shapes to measure come from.

Two kinds of loads. Those that serving runs: tokens of a step from one to the largest budget that an engine steps with,
decode batches and contexts that fit beside the weights, chunks of long prompts. And corners: a grid that spans the
same range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from inferplan.catalog.assemble import load_engine
from inferplan.catalog.files import load_model, names
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import InfeasibleError
from inferplan.models.layers import parse_layer
from inferplan.models.spec import LayerGroup, ModelSpec
from inferplan.units import format_bytes
from inferplan.work.step import Segment, Step

WEIGHT_BYTES = 1.0
"""Bytes of a parameter when it is asked whether a device can hold a model: large ones are served in 8 bits."""
HELD = 0.9
"""Share of the memory for weights and cache: what engines take (vLLM's ``gpu_memory_utilization``)."""


def tiny_dense() -> ModelSpec:
    """A grouped-query decoder that a CPU runs in milliseconds."""
    return _tiny(
        "tiny-dense",
        {"kind": "attention", "heads": 8, "kv_heads": 2, "head_dim": 64},
        {"kind": "mlp", "d_ff": 1536},
    )


def tiny_moe() -> ModelSpec:
    """Sixteen experts, two for each token."""
    return _tiny(
        "tiny-moe",
        {"kind": "attention", "heads": 8, "kv_heads": 8, "head_dim": 64},
        {"kind": "moe", "experts": 16, "top_k": 2, "d_ff": 512},
    )


def tiny_mla() -> ModelSpec:
    """Latent attention with heads of 64 + 32."""
    mla = {"kind": "mla", "heads": 8, "kv_lora": 128, "nope_dim": 64, "rope_dim": 32, "value_dim": 64}
    return _tiny("tiny-mla", mla, {"kind": "mlp", "d_ff": 1536})


def _tiny(name: str, mixer: dict[str, object], ffn: dict[str, object]) -> ModelSpec:
    layer = LayerGroup.model_validate({"repeat": 4, "mixer": parse_layer(mixer), "ffn": parse_layer(ffn)})
    return ModelSpec(name=name, source="made for calibration on a CPU", d_model=512, vocab=8192, layers=[layer])


TINY = {spec().name: spec for spec in (tiny_dense, tiny_moe, tiny_mla)}


THIN = "thin"
"""A model whose kernels take nothing but their launches (:func:`thin`)."""


def thin(layers: int = 18) -> ModelSpec:
    """A decoder of width 64: what its steps take beside the overheads of its kernels is Python and views."""
    mixer = {"kind": "attention", "heads": 2, "kv_heads": 1, "head_dim": 32}
    ffn = {"kind": "mlp", "d_ff": 64}
    layer = LayerGroup.model_validate({"repeat": layers, "mixer": parse_layer(mixer), "ffn": parse_layer(ffn)})
    return ModelSpec(name=THIN, source="made for calibration on a CPU", d_model=64, vocab=64, layers=[layer])


def find_model(name: str) -> ModelSpec:
    """The thin model, a tiny one, or one of the catalogue by name, a YAML or a config by path.

    Raises as ``load_model`` does.
    """
    return thin() if name == THIN else TINY[name]() if name in TINY else load_model(name)


ADAPTERS = (16, 8), (64, 4)
"""Ranks of adapters, and how many of each are in memory: vLLM's usual rank and its largest for one kernel."""


@dataclass(frozen=True, kw_only=True)
class Loads:
    """Steps of one model: every prompt in every prefill batch, contexts in decode batches, and chunks.

    prompts, contexts in tokens of a sequence; chunks as (new tokens, tokens before them). apart: the first batch has
    the first context and every ``apart``-th after it, the next one those that begin at the second, and so on.
    """

    prompts: tuple[int, ...] = ()
    prefill_batches: tuple[int, ...] = ()
    decode_batches: tuple[int, ...] = ()
    contexts: tuple[int, ...] = ()
    chunks: tuple[tuple[int, int], ...] = ()
    apart: int = 1

    def steps(self, largest: int) -> Iterator[Step]:
        """Prefills, chunks of a prefill, and decodes, of at most ``largest`` tokens a step."""
        prefills = [(batch, prompt, 0) for batch, prompt in product(self.prefill_batches, self.prompts)]
        chunks = [(1, new, past) for new, past in self.chunks]
        decodes = [
            (batch, 1, context - 1)
            for place, batch in enumerate(self.decode_batches)
            for context in self.contexts[place % self.apart :: self.apart]
        ]
        for batch, new, past in (*prefills, *chunks, *decodes):
            if batch * new <= largest:
                yield Step(segments=(Segment(batch=float(batch), new=float(new), past=float(past)),))

    def once(self) -> Loads:
        """The same tokens at a single context, for operators that see nothing of the context."""
        return replace(self, contexts=self.contexts[:1], chunks=(), apart=1)


@dataclass(frozen=True, kw_only=True)
class Design:
    """Which graphs the shapes come from.

    tp: the divisions that give each model further widths. base: the format every operator is measured in. others: base
    formats of the first model only. quantised: formats of linear layers, of the models in ``quantised_models``.
    adapted: models beside which LoRA adapters run (:data:`ADAPTERS`). served: what serving runs; prompts,
    prefill_batches, decode_batches, contexts: the grid of the corners. held_out: models that nothing is fitted to; the
    first one that is not the user's own is measured beside the others, and only predicted. own: models the user asks
    for.
    """

    models: tuple[str, ...]
    tp: tuple[int, ...]
    base: str
    others: tuple[str, ...]
    quantised: tuple[str, ...]
    quantised_models: tuple[str, ...]
    prompts: tuple[int, ...]
    prefill_batches: tuple[int, ...]
    decode_batches: tuple[int, ...]
    contexts: tuple[int, ...]
    chunks: bool = True
    """Chunks of a longer prefill among the shapes."""
    served: Loads = Loads()
    held_out: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    adapted: tuple[str, ...] = ()

    def corners(self) -> Loads:
        """The grid that spans the range of tokens and contexts."""
        chunked = self.prompts[2::2] if self.chunks else ()
        return Loads(
            prompts=self.prompts,
            prefill_batches=self.prefill_batches,
            decode_batches=self.decode_batches,
            contexts=self.contexts,
            chunks=tuple((prompt, 2 * prompt) for prompt in chunked),
        )

    def on(self, hardware: HardwareSpec) -> Design:
        """The design in formats that the hardware has: fp16 stands for bf16 on devices before it (V100, T4)."""
        if self.base in hardware.peak:
            return self
        base = next((name for name in ("bf16", "fp16", "fp32") if name in hardware.peak), self.base)
        return replace(self, base=base, others=tuple(name for name in self.others if name != base))

    @property
    def stranger(self) -> str | None:
        """The model that nothing is fitted to; ``None`` when there is none."""
        return next((name for name in self.held_out if name not in self.own_names), None)

    @property
    def own_names(self) -> list[str]:
        """The user's models by the names that they have, whatever path they came by."""
        return [find_model(name).name for name in self.own]

    def fitted_to(self, names: Iterable[str]) -> Design:
        """The design with further models that constants were fitted to, so that none of them is held out."""
        return replace(self, held_out=tuple(name for name in self.held_out if name not in set(names)))


CPU = Design(
    models=("llama-3.2-1b", "qwen2.5-1.5b", *TINY),
    tp=(1,),
    base="bf16",
    others=("fp32",),
    quantised=("int8", "int4"),
    quantised_models=("llama-3.2-1b",),
    prompts=(24, 48, 96, 192, 384, 768),
    prefill_batches=(1, 4),
    decode_batches=(1, 2, 4, 8, 16, 32),
    contexts=(64, 192, 512, 1536, 4096, 12288),
    chunks=False,
    served=Loads(
        prompts=(20, 50, 120, 250, 500, 1000),
        prefill_batches=(1, 2),
        decode_batches=(1, 2, 3, 4, 6, 8, 12, 16, 24),
        contexts=(100, 300, 800, 2000, 5000),
        apart=2,
    ),
    held_out=("qwen2.5-0.5b", "tinyllama-1.1b-chat-v1.0"),
)
"""Small models in the formats a CPU has. No chunks: with keys before the first query torch computes the rectangle."""
GPU = Design(
    models=(
        "llama-3.1-8b",
        "llama-3.1-70b",
        "qwen3-30b-a3b",
        "gemma-3-12b",
        "gemma-3-27b",
        "deepseek-v2-lite",
        "deepseek-v3",
        "mamba2-2.7b",
        "olmoe-1b-7b-0924",
    ),
    tp=(1, 2, 4, 8),
    base="bf16",
    others=("fp16", "fp32"),
    quantised=("fp8", "fp8-block", "int8", "int4", "nvfp4", "mxfp4"),
    quantised_models=("llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b"),
    adapted=("llama-3.1-8b", "llama-3.1-70b"),
    prompts=(64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    prefill_batches=(1, 4, 16),
    decode_batches=(1, 4, 16, 64, 256),
    contexts=(128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536),
    served=Loads(
        prompts=(30, 100, 250, 600, 1000, 1500, 2500, 4000, 6000, 8192),
        prefill_batches=(1, 2, 5),
        decode_batches=(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256),
        contexts=(200, 600, 1200, 2500, 5000, 10000, 30000),
        chunks=((512, 1024), (512, 7168), (2048, 2048), (2048, 14336), (8192, 8192)),
        apart=3,
    ),
    held_out=("qwen2.5-7b", "mistral-7b-v0.3"),
)
"""Dense, sparse, windowed, latent and recurrent models, in the formats an accelerator has. Batches are those that
engines capture graphs for and some between, chunks the token budgets of vLLM and SGLang (``configs/engines``)."""


def largest_step(hardware: HardwareSpec) -> int:
    """The most tokens that an engine's step holds on a device: the largest of the budgets in ``configs/engines``.

    The reference engine has no budget of its own and is left out, and so is one that does not run there; a device whose
    memory nobody reported gets the largest budget of all.
    """
    known = (load_engine(name) for name in names("engines") if name != "none")
    engines = [engine for engine in known if engine.runs_on(hardware)]
    if hardware.memory.usable is None:
        return max(tier.token_budget for engine in engines for tier in engine.defaults.tiers)
    return max(engine.defaults.tier(hardware).token_budget for engine in engines)


def rank_bytes(spec: ModelSpec, tp: int) -> float:
    """Bytes of weights that one of ``tp`` ranks holds at least, at :data:`WEIGHT_BYTES` a parameter."""
    return sum(weight.elements * count for weight, count in spec.weights()) * WEIGHT_BYTES / tp


def require_room(design: Design, memory: float) -> None:
    """Raise ``InfeasibleError`` for a model of the user's that no division of the design brings into ``memory`` bytes,
    and what ``find_model`` raises for a name that nothing has."""
    for name in design.own:
        spec = find_model(name)
        need = rank_bytes(spec, max(design.tp))
        if need > HELD * memory:
            raise InfeasibleError(
                f"a device of {format_bytes(memory)} cannot hold {spec.name}",
                because=f"its weights are {format_bytes(need)} a device in 8 bits, divided over {max(design.tp)}",
                hint="leave --model out, or name a smaller model with layers like its own",
            )
