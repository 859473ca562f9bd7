"""A whole decoder with random weights: real layers on a real cache, prefilled and decoded.

The layers are those of a ``ModelSpec`` (attention and latent attention; plain, gated and routed feed-forwards), so that
the step which is timed is the step whose graph is priced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrate.kernels import whole_attention
from calibrate.kernels.attention import explicit_attention, library_attention
from calibrate.kernels.operands import NoKernelError, dtype_of
from calibrate.kernels.target import target_of
from inferplan.models.layers.attention import AttentionLayer
from inferplan.models.layers.mla import MlaLayer
from inferplan.models.layers.mlp import MlpLayer
from inferplan.models.layers.moe import MoeLayer
from inferplan.models.spec import ModelSpec
from inferplan.work.formats import find_format
from inferplan.work.step import WIDE

RECOMPILED = 64
"""Versions of a compiled map, of shapes and strides, before the compiler gives up; three models at four prompts and
eight batches need 13."""


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding (2104.09864 eq. 34) of ``x [b, t, h, d]``; ``cos`` is as wide as a head."""
    first, second = x.chunk(2, dim=-1)
    half = x.shape[-1] // 2
    turned = x * cos
    turned[..., :half].addcmul_(second, sin, value=-1.0)
    turned[..., half:].addcmul_(first, sin)
    return turned


def gated(x: Tensor) -> Tensor:
    """``silu(gate)*up`` of a fused projection."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


@dataclass(eq=False)
class FusedMaps:
    """Small maps between the library calls, fused by the compiler on CUDA as an engine's kernels are."""

    rotate: Callable[..., Tensor] = rotate
    gated: Callable[[Tensor], Tensor] = gated
    note: str = "eager"

    @classmethod
    def on(cls, kind: str) -> FusedMaps:
        """The maps for a kind of device: compiled on CUDA where there is a compiler."""
        if kind != "cuda":
            return cls()
        try:
            fused = cls(rotate=_compiled(rotate), gated=_compiled(gated), note="compiled")
            dtype = dtype_of(find_format(target_of(kind).base))
            probe = torch.randn(2, 4, 2, 8, device=kind, dtype=dtype)
            angles = torch.randn(4, 1, 8, device=kind, dtype=dtype)
            fused.rotate(probe, angles, angles[..., :4]), fused.gated(probe)
        except Exception as error:  # a machine without a compiler: the maps still run, one kernel after another
            return cls(note=f"eager: not compiled ({type(error).__name__})")
        return fused


def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compiled once for all shapes; every layout of heads and positions that models have may be a version of its own
    (the usual limit of eight sends DeepSeek's layers back to eager, and tells nobody). Beyond :data:`RECOMPILED` a call
    raises what :func:`compiled_too_often` knows."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, RECOMPILED)
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    compiled: Callable[..., Tensor] = torch.compile(function, dynamic=True)
    return compiled


def compiled_too_often(error: BaseException) -> bool:
    """Whether a map refused to be compiled for one more kind of shapes."""
    return type(error).__name__ == "FailOnRecompileLimitHit"  # torch._dynamo.exc, which takes seconds to import


class WholeModel:
    """A model on a device, with a cache for one load at a time."""

    def __init__(self, spec: ModelSpec, kind: str, fmt: str, maps: FusedMaps) -> None:
        self.spec, self.kind, self.maps = spec, kind, maps
        self.target = target_of(kind)
        self.dtype = dtype_of(find_format(fmt))
        self.generator = torch.Generator(device=kind)
        self.generator.manual_seed(0)
        width = spec.d_model
        self.embedding = self.random(spec.vocab, width)
        self.head = self.embedding if spec.tied else self.random(spec.vocab, width)
        self.final = self.random(width)
        self.layers: list[tuple[Any, ...]] = []
        for layer in spec.sequence:
            norms = (self.random(width), self.random(width))
            self.layers.append((norms, self._mixer(layer.mixer), self._ffn(layer.ffn)))
        self.caches: list[Tensor | tuple[Tensor, Tensor]] = []

    def random(self, *shape: int) -> Tensor:
        """Normal values of standard deviation 0.02 in the model's type."""
        return torch.randn(shape, device=self.kind, dtype=self.dtype, generator=self.generator).mul_(0.02)

    def prepare(self, batch: int, new: int, past: int) -> tuple[Tensor, ...]:
        """A cache that holds ``past`` random tokens and has room for ``new``; the tokens of the step."""
        length = past + new
        self.caches = []  # those of the last load go first: both at once may be more than there is
        self.caches = [mixer.cache(batch, length) for _, mixer, _ in self.layers]
        tokens = torch.randint(self.spec.vocab, (batch, new), device=self.kind, generator=self.generator)
        return (tokens,)

    def step(self, tokens: Tensor, past: int) -> Tensor:
        """One forward pass; the next token of every sequence."""
        x = self.hidden(tokens, past)
        last = F.rms_norm(x[:, -1], x.shape[-1:], self.final, 1e-6)
        return F.linear(last, self.head).argmax(-1)

    def hidden(self, tokens: Tensor, past: int) -> Tensor:
        """The residual stream after the last layer."""
        x = F.embedding(tokens, self.embedding)
        for ((before, between), mixer, ffn), cache in zip(self.layers, self.caches):
            x = x + mixer(F.rms_norm(x, x.shape[-1:], before, 1e-6), cache, past)
            x = x + ffn(F.rms_norm(x, x.shape[-1:], between, 1e-6))
        return x

    def _mixer(self, spec: Any) -> Any:
        if isinstance(spec, AttentionLayer):
            return Heads(self, spec)
        if isinstance(spec, MlaLayer):
            return Latent(self, spec)
        raise NoKernelError(f"no whole-model layer for a mixer of kind {getattr(spec, 'kind', None)}")

    def _ffn(self, spec: Any) -> Any:
        if isinstance(spec, MlpLayer):
            return Dense(self, spec.d_ff, spec.gated)
        if isinstance(spec, MoeLayer) and spec.latent is None:
            return Routed(self, spec)
        raise NoKernelError(f"no whole-model layer for a feed-forward of kind {getattr(spec, 'kind', None)}")

    def angles(self, new: int, past: int, width: int) -> tuple[Tensor, Tensor]:
        """Cosines for ``width`` and sines for half of it, of the positions ``past .. past + new - 1``."""
        rates = 10000.0 ** -(torch.arange(0, width, 2, device=self.kind) / width)
        phase = torch.arange(past, past + new, device=self.kind)[:, None, None] * rates
        return phase.cos().repeat(1, 1, 2).to(self.dtype), phase.sin().to(self.dtype)


class Heads:
    """Grouped-query attention on a cache ``[batch, length, kv_heads, d]``."""

    def __init__(self, model: WholeModel, spec: AttentionLayer) -> None:
        self.model, self.spec, width = model, spec, model.spec.d_model
        self.sizes = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim, spec.kv_heads * spec.value_width)
        self.qkv = model.random(sum(self.sizes), width)
        self.out = model.random(width, spec.heads * spec.value_width)
        self.qk_norm = model.random(spec.head_dim) if spec.qk_norm != "none" else None
        sizes = whole_attention.Heads(
            heads=spec.heads,
            kv_heads=spec.kv_heads,
            key_dim=spec.head_dim,
            value_dim=spec.value_width,
            dtype=model.dtype,
        )
        self.library, self.attend = whole_attention.attention_of(model.target, sizes)
        self._angles: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def cache(self, batch: int, length: int) -> tuple[Tensor, Tensor]:
        """Random keys ``[batch, length, kv_heads, head_dim]`` and values of their own width."""
        spec = self.spec
        return (
            self.model.random(batch, length, spec.kv_heads, spec.head_dim),
            self.model.random(batch, length, spec.kv_heads, spec.value_width),
        )

    def __call__(self, x: Tensor, cache: tuple[Tensor, Tensor], past: int) -> Tensor:
        """``x [batch, new, d_model]`` through the layer, its keys and values written to the cache after ``past``."""
        spec, (batch, new, _) = self.spec, x.shape
        both, v = F.linear(x, self.qkv).split((sum(self.sizes[:2]), self.sizes[2]), dim=-1)
        qk = both.unflatten(2, (spec.heads + spec.kv_heads, spec.head_dim))
        if self.qk_norm is not None:
            qk = F.rms_norm(qk, qk.shape[-1:], self.qk_norm, 1e-6)
        if spec.rotary:
            qk = self.model.maps.rotate(qk, *self.positions(new, past))
        q, k = qk.split((spec.heads, spec.kv_heads), dim=2)
        keys, values = cache
        keys[:, past:], values[:, past:] = k, v.unflatten(2, (spec.kv_heads, spec.value_width))
        kept = min(past + new, spec.window - 1 + new) if spec.window is not None else past + new
        mixed = self.attend(q.contiguous() if new == 1 else q, keys[:, -kept:], values[:, -kept:], spec.mask)
        return F.linear(mixed.reshape(batch, new, -1), self.out)

    def positions(self, new: int, past: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of ``new`` positions after ``past``; those of the last load are kept."""
        if (new, past) not in self._angles:
            self._angles = {(new, past): self.model.angles(new, past, self.spec.head_dim)}
        return self._angles[new, past]


class Latent:
    """Multi-head latent attention: expanded for many new tokens, absorbed for few (2405.04434 section 2.1)."""

    def __init__(self, model: WholeModel, spec: MlaLayer) -> None:
        if spec.indexer is not None:
            raise NoKernelError("no whole-model layer for sparse latent attention")
        self.model, self.spec, width = model, spec, model.spec.d_model
        q = spec.heads * spec.key_dim
        self.q_a = None if spec.q_lora is None else (model.random(spec.q_lora, width), model.random(spec.q_lora))
        self.q_b = model.random(q, spec.q_lora or width)
        self.kv_a, self.kv_norm = model.random(spec.latent_dim, width), model.random(spec.kv_lora)
        self.kv_b = model.random(spec.heads * (spec.nope_dim + spec.value_dim), spec.kv_lora)
        each = self.kv_b.view(spec.heads, spec.nope_dim + spec.value_dim, spec.kv_lora)
        self.k_up, self.v_up = each[:, : spec.nope_dim], each[:, spec.nope_dim :].transpose(1, 2)
        self.out = model.random(width, spec.heads * spec.value_dim)
        self._angles: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def cache(self, batch: int, length: int) -> Tensor:
        """Random latents ``[batch, length, 1, kv_lora + rope_dim]``."""
        return self.model.random(batch, length, 1, self.spec.latent_dim)

    def __call__(self, x: Tensor, cache: Tensor, past: int) -> Tensor:
        """``x [batch, new, d_model]`` through the layer, its latents written to the cache after ``past``."""
        spec, (batch, new, _) = self.spec, x.shape
        if self.q_a is not None:
            down, norm = self.q_a
            q = F.linear(F.rms_norm(F.linear(x, down), norm.shape, norm, 1e-6), self.q_b)
        else:
            q = F.linear(x, self.q_b)
        q = q.unflatten(2, (spec.heads, spec.key_dim))
        latent, rope = F.linear(x, self.kv_a)[:, :, None].split((spec.kv_lora, spec.rope_dim), dim=-1)
        if (new, past) not in self._angles:
            self._angles = {(new, past): self.model.angles(new, past, spec.rope_dim)}
        cos, sin = self._angles[new, past]
        q_nope, q_rope = q.split((spec.nope_dim, spec.rope_dim), dim=-1)
        q_rope, rope = self.model.maps.rotate(q_rope, cos, sin), self.model.maps.rotate(rope, cos, sin)
        cache[:, past:, :, : spec.kv_lora] = F.rms_norm(latent, latent.shape[-1:], self.kv_norm, 1e-6)
        cache[:, past:, :, spec.kv_lora :] = rope
        attend = self._expanded if new > WIDE else self._absorbed
        mixed = attend(q_nope, q_rope, cache)
        return F.linear(mixed.reshape(batch, new, -1), self.out)

    def _expanded(self, q_nope: Tensor, q_rope: Tensor, cache: Tensor) -> Tensor:
        spec = self.spec
        up = F.linear(cache[..., : spec.kv_lora], self.kv_b).squeeze(2)
        k, v = up.unflatten(2, (spec.heads, -1)).split((spec.nope_dim, spec.value_dim), dim=-1)
        shared = cache[..., spec.kv_lora :].expand(-1, -1, spec.heads, -1)
        q, k = torch.cat((q_nope, q_rope), dim=-1), torch.cat((k, shared), dim=-1)
        return library_attention(q, k, v, spec.mask, repeat=self.model.kind == "cuda")

    def _absorbed(self, q_nope: Tensor, q_rope: Tensor, cache: Tensor) -> Tensor:
        spec, (batch, new, heads, _) = self.spec, q_nope.shape
        rows = q_nope.reshape(batch * new, heads, -1).transpose(0, 1)
        absorbed = torch.bmm(rows, self.k_up).transpose(0, 1).reshape(batch, new, heads, spec.kv_lora)
        q = torch.cat((absorbed, q_rope), dim=-1)
        values = cache[..., : spec.kv_lora]
        if self.model.kind == "cuda":
            mixed = explicit_attention(q, cache, values, None)
        else:
            mixed = library_attention(q, cache, values, spec.mask)
        out = torch.bmm(mixed.reshape(batch * new, heads, -1).transpose(0, 1), self.v_up)
        return out.transpose(0, 1).reshape(batch, new, heads, -1)


class Dense:
    """A plain or gated feed-forward."""

    def __init__(self, model: WholeModel, width: int, gated: bool) -> None:
        self.map = model.maps.gated if gated else F.silu
        self.up = model.random(width * (2 if gated else 1), model.spec.d_model)
        self.down = model.random(model.spec.d_model, width)

    def __call__(self, x: Tensor) -> Tensor:
        """``x [batch, new, d_model]`` through both projections."""
        return F.linear(self.map(F.linear(x, self.up)), self.down)


class Routed:
    """Experts: tokens sorted by expert, two grouped matmuls, and a weighted sum back."""

    def __init__(self, model: WholeModel, spec: MoeLayer) -> None:
        self.spec, width = spec, model.spec.d_model
        if model.dtype is not torch.bfloat16 and model.kind == "cuda":
            raise NoKernelError(
                f"torch's grouped matmul wants bf16, which {model.target} has not", hint="a dense model"
            )
        self.map = model.maps.gated if spec.gated else F.silu
        self.router = model.random(spec.experts, width)
        self.up = model.random(spec.experts, spec.d_ff * (2 if spec.gated else 1), width)
        self.down = model.random(spec.experts, width, spec.d_ff)
        self.shared = Dense(model, spec.shared_d_ff, spec.gated) if spec.shared_d_ff else None

    def __call__(self, x: Tensor) -> Tensor:
        """``x [batch, new, d_model]`` through each token's experts."""
        spec, flat = self.spec, x.flatten(0, 1)
        weights, experts = F.linear(flat, self.router).softmax(-1).topk(spec.top_k, dim=-1)
        order = experts.flatten().argsort()
        rows = order // spec.top_k
        counts = torch.zeros(spec.experts, dtype=torch.int32, device=x.device)
        counts.scatter_add_(0, experts.flatten(), torch.ones_like(order, dtype=torch.int32))
        ends = counts.cumsum(0).to(torch.int32)
        inner = self.map(torch._grouped_mm(flat[rows], self.up.transpose(1, 2), offs=ends))
        outer = torch._grouped_mm(inner, self.down.transpose(1, 2), offs=ends)
        outer = outer * weights.flatten()[order][:, None]
        out = torch.zeros_like(flat).index_add_(0, rows, outer).view_as(x)
        return out if self.shared is None else out + self.shared(x)
