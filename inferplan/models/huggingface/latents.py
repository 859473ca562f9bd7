"""Perceiver (2107.14795): latents read the request, attend to each other, and are read by queries of every position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inferplan.models.huggingface.dialect import Dialect, Layer
from inferplan.models.huggingface.heads import architecture
from inferplan.models.huggingface.listed import TOKENS, Listing, Polynomial
from inferplan.models.huggingface.reader import ACTIVATION, Reader

_OTHER = ("image_size", "train_size", "num_frames", "audio_samples_per_frame", "samples_per_patch", "output_shape",
          "output_num_channels", "_label_trainable_num_channels")  # fmt: skip
"""Of the classes that read images, flow and sound."""


@dataclass(frozen=True, kw_only=True)
class Attends:
    """A layer: so many wide are what asks and what answers, keys and values; its heads; rows of either.

    A layer whose rows are their own keys has ``keys`` of ``None``. residual: what asks is added to what it gets.
    """

    asks: int
    answers: int
    key: int
    value: int
    heads: int
    wider: int
    rows: Polynomial
    keys: Polynomial | None = None
    residual: bool = True

    def layer(self) -> Layer:
        """Its tensors and operators."""
        listing = Listing()
        listing.rows = self.rows
        listing.norm("norm.0", self.asks)
        listing.matmul("q", self.asks, self.key)
        if self.keys is not None:
            listing.rows = self.keys
            listing.norm("norm.source", self.answers)
        listing.matmul("k", self.answers, self.key)
        listing.matmul("v", self.answers, self.value)
        listing.rows = self.rows
        self._core(listing)
        listing.matmul("o", self.value, self.asks)
        if self.residual:
            listing.residual(self.asks)
        listing.norm("norm.1", self.asks)
        listing.matmul("up", self.asks, self.wider * self.asks)
        listing.map("activation", self.wider * self.asks, flops=4)
        listing.matmul("down", self.wider * self.asks, self.asks)
        listing.residual(self.asks)
        return {"mixer": listing.part(2 * self.key + 2 * self.value + self.wider * self.asks), "norms": 0}

    def _core(self, listing: Listing) -> None:
        """Scores lie in memory, as the class writes them down."""
        every, other = _of_one(self.rows), _of_one(self.rows if self.keys is None else self.keys)
        (name, number), (beside, columns) = (*every.items(),)[0], (*other.items(),)[0]
        scores = {f"b{name}{beside}".replace("1", ""): self.heads * number * columns}
        batch = {"b": self.heads}
        listing.product("scores", batch, every, {"1": self.key // self.heads}, other)
        listing.pointwise("softmax", {key: 5 * size for key, size in scores.items()}, scores, scores)
        listing.product("values", batch, every, other, {"1": self.value // self.heads})


def _of_one(rows: Polynomial) -> Polynomial:
    """Rows of one sequence."""
    return {name.removeprefix("b") or "1": count for name, count in rows.items()}


def perceiver(r: Reader, d: Dialect) -> dict[str, Any]:
    """The masked language model: it puts out all of its positions, however long the request is."""
    name = architecture(r)
    if name not in (None, "PerceiverForMaskedLM"):
        raise r.refuse(f"architectures = [{name!r}]", "only PerceiverForMaskedLM reads text and is known")
    r.skip(*_OTHER, *ACTIVATION)
    r.config["tie_word_embeddings"] = True  # the class multiplies with the embedding, whatever the flag says
    width, latent, rows = r.integer("d_model"), r.integer("d_latents"), r.integer("vocab_size")
    longest, number = r.integer("max_position_embeddings"), {"b": r.integer("num_latents")}
    out = {"b": longest}
    reads = _reads(r, (latent, width), number)
    block = [_own(r, latent, number)] * r.integer("num_self_attends_per_block")
    again = [layer | {"shared": True} for layer in block] * (r.integer("num_blocks") - 1)
    writes = Attends(asks=width, answers=latent, key=256, value=width, heads=8, wider=1, rows=out, keys=number,
                     residual=False)  # fmt: skip
    behind = Listing()
    behind.rows = out
    behind.matmul("vocabulary", width, rows, bias=False)
    behind.tensors.clear()  # the embedding
    behind.tensor("vocabulary.bias", rows)
    tensors = {"latents": [number["b"], latent], "queries": [longest, width]}
    return {
        "d_model": width,
        "vocab": rows,
        "max_context": longest,
        "norm": "layer",
        "final_norm": False,
        "layers": [reads, *block, *again, writes.layer()],
        "generation": {"kind": "encode"},
        "ends": {"tables": {"positions": longest}, "tensors": tensors, "behind": behind.part(0)},
        "notes": [f"it puts out {longest} positions, which take their time whatever the prompt"],
    }


def _checked(r: Reader, found: Attends, name: str) -> Layer:
    for width in (found.key, found.value):
        if found.heads < 1 or width % found.heads:
            raise r.refuse(name, f"{found.heads} heads do not divide {width}")
    return found.layer()


def _reads(r: Reader, widths: tuple[int, int], latents: Polynomial) -> Layer:
    """Attention of the latents to the request."""
    latent, width = widths
    shape = r.get("cross_attention_shape_for_attention") or "kv"
    if shape not in ("q", "kv"):
        raise r.refuse(f"cross_attention_shape_for_attention = {shape!r}", "only q and kv are known")
    key = r.optional("qk_channels") or (width if shape == "kv" else latent)
    heads, wider = r.integer("num_cross_attention_heads"), r.integer("cross_attention_widening_factor")
    found = Attends(asks=latent, answers=width, key=key, value=r.optional("v_channels") or key, heads=heads,
                    wider=wider, rows=latents, keys=TOKENS, residual=r.flag("use_query_residual", True))  # fmt: skip
    return _checked(r, found, "num_cross_attention_heads")


def _own(r: Reader, latent: int, latents: Polynomial) -> Layer:
    """Attention of the latents to each other."""
    key = r.optional("qk_channels") or latent
    value = r.optional("v_channels") or key
    if value != latent:
        raise r.refuse("qk_channels or v_channels", f"its layers put out {value}, and the latents are {latent} wide")
    heads, wider = r.integer("num_self_attention_heads"), r.integer("self_attention_widening_factor")
    found = Attends(asks=latent, answers=latent, key=key, value=value, heads=heads, wider=wider, rows=latents)
    return _checked(r, found, "num_self_attention_heads")
