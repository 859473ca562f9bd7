"""Towers with what joins them, of Inkling: images folded step by step, sound looked up; and of Inkling 2."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from inferplan.models.huggingface.reader import Reader
from inferplan.models.huggingface.towers.beside import AUDIO, VISION, Beside, vision
from inferplan.models.huggingface.towers.parts import Tensors, feed_forward, linear, norm, tower
from inferplan.models.huggingface.towers.vit import plain


def _factors(number: int) -> list[int]:
    """Prime factors, the largest first."""
    found, prime = [], 2
    while number > 1:
        while number % prime == 0:
            found.append(prime)
            number //= prime
        prime += 1
    return found[::-1]


_ROUNDING = 2.0**-4
"""Between neighbouring numbers of bf16 from 8 to 16, which these logarithms reach."""


def _scales(r: Reader) -> list[tuple[int, int, int]]:
    """Frames, pixels a side and channels of what each layer reads, and of what the last puts out.

    Every scale folds one prime factor more, first of the patch, then of its frames; a layer has the one whose size
    is nearest to equal steps of its logarithm (``plan_out_scales`` of transformers 5.23).
    """
    patch, frames = r.integer("patch_size"), r.integer("temporal_patch_size")
    channels, count = r.integer("num_channels"), r.integer("num_hidden_layers", "n_layers")
    sides = [int(side) for side in np.cumprod(_factors(patch))]
    depths = [int(depth) for depth in np.cumprod(_factors(frames))]
    if not sides:
        raise r.refuse(f"patch_size = {patch}", "it has no prime factor to fold by")
    scales = [(1, 1, channels), *((1, side, -(-(side**2) * channels // 64) * 64) for side in sides)]
    scales += [(depth, patch, patch**2 * channels * depth * 64) for depth in depths]
    if count < len(scales):
        raise r.refuse(
            "num_hidden_layers", f"{count} layers for {len(scales)} scales: which it leaves out is not known"
        )
    sizes = np.log(np.array([depth * side**2 for depth, side, _ in scales], dtype=np.float32))
    ideal = np.linspace(0.0, np.log(np.float32(patch**2 * frames * channels)), count + 1, dtype=np.float32)
    apart = np.abs(ideal[:, None] - sizes)
    nearest = np.sort(apart, axis=1)[1:-1]
    if np.any(nearest[:, 1] - nearest[:, 0] < _ROUNDING):
        raise r.refuse("num_channels", "two scales are as near to a layer: a class in bf16 takes another than in fp32")
    places = [int(place) for place in apart.argmin(axis=1)]
    return [scales[place] for place in (0, *places[1:-1], len(scales) - 1)]


def inkling_vision(r: Reader) -> dict[str, Any]:
    """Inkling's: no attention; neighbouring pixels and frames are joined, and each layer is one matrix."""
    out, scales = r.integer("text_hidden_size"), _scales(r)
    tensors = Tensors()
    for place, (before, after) in enumerate(pairwise(scales)):
        folded = after[0] // before[0] * (after[1] // before[1]) ** 2
        last = place + 2 == len(scales)
        width = out if last else after[2]
        tensors |= linear(f"fold.{place}", before[2] * folded, width, bias=False)
        tensors |= {} if last else norm(f"fold.{place}.norm", width, 1)
    r.skip("hidden_size", "num_attention_heads")
    return tower(out, [], tensors | norm("norm", out, 1), "rms")


def inkling_audio(r: Reader) -> dict[str, Any]:
    """Inkling's: a row for each level of each bin of the spectrogram, added up, and a norm."""
    out = r.integer("text_hidden_size")
    rows = r.integer("n_mel_bins") * r.integer("mel_vocab_size")
    return tower(out, [], {"codes": [rows, out], **norm("norm", out, 1)}, "rms")


def inkling2_vision(r: Reader) -> dict[str, Any]:
    """Inkling 2's: a class token, learned and rotary positions, scaled residuals; two matrices over what is joined."""
    width, layers = plain(r, rotary=True)
    count, side, merge = r.integer("num_hidden_layers"), r.integer("posemb_grid_size"), r.integer("spatial_merge_size")
    tensors = linear("patch", r.integer("num_channels") * r.integer("patch_size") ** 2, width, bias=False)
    tensors |= {"positions": [side**2 + 1, width], "class": [width], "layer_scales": [count, 2, width]}
    joined = [width * merge**2, r.integer("projection_hidden_dim"), r.integer("text_hidden_size")]
    r.skip("mlp_ratio")
    tensors |= norm("norm.before", width) | feed_forward("projector", joined, r.flag("projector_bias", False))
    return tower(width, layers, tensors)


TOWERS = {
    "inkling_vision": inkling_vision,
    "inkling_audio": inkling_audio,
    "inkling2_vision": inkling2_vision,
}

JOINED: dict[str, Beside] = {
    "inkling_mm_model": Beside(towers={VISION: "inkling_vision", AUDIO: "inkling_audio"}),
    "inkling2": vision("inkling2_vision"),
}
"""Rows of the table of what stands beside a language model."""
