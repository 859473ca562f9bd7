"""What the stand-in's kernels take: constants that a fit of its measurements ought to find again."""

from __future__ import annotations

from typing import Any

import torch

from calibrate.samples import key_of
from inferplan.devices.constants import Calibration, Fit
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import MissingFactError
from inferplan.estimate.roofline import price
from inferplan.work.ops import Op

KNOWN = Fit(math=0.7, memory=0.8, overhead=3e-6, sharpness=4.0)
"""The constants of every operator, unless the test brings its own."""
_FORMATS = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int8: "int8",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e4m3fnuz: "fp8",
}


class Truth:
    """Seconds of operators by their price under known constants, and of single torch functions by their roofline.

    constants: by kernel and format; those that are not there are :data:`KNOWN`.
    """

    def __init__(self, hardware: HardwareSpec, constants: Calibration | None = None) -> None:
        self.hardware, self._given = hardware, constants
        self._prices: dict[str, float | None] = {}

    def operator(self, op: Op) -> float | None:
        """Seconds of one run of an operator; ``None`` for one that the hardware has no figures for."""
        key = key_of(op)
        if key not in self._prices:
            try:
                self._prices[key] = float(price(op, self.hardware, self._constants(op)).time)
            except MissingFactError:
                self._prices[key] = None
        return self._prices[key]

    def _constants(self, op: Op) -> Calibration:
        given = self._given.constants if self._given else {}
        fitted = given.get(op.kernel, {}).get(op.label, KNOWN)
        return Calibration(name="truth", constants={op.kernel: {op.label: fitted}})

    def function(self, name: str, args: tuple[Any, ...], moved: float) -> float:
        """Seconds of one torch function that reads and writes ``moved`` bytes."""
        flop, dtype = work_of(name, args)
        peak = self.hardware.peak
        rate = peak.get(_FORMATS.get(dtype, "fp32"), peak.get("fp32", min(peak.values())))
        if dtype is torch.float32 and torch.get_float32_matmul_precision() != "highest":
            rate = peak.get("tf32", rate)
        return KNOWN.overhead + max(flop / (KNOWN.math * rate), moved / (KNOWN.memory * self.hardware.memory.bandwidth))


_BY_LAST = {"mm", "bmm", "matmul", "__matmul__", "__rmatmul__", "_int_mm", "_scaled_mm", "scaled_mm", "addmm"}
_BY_LAST |= {"_grouped_mm", "grouped_mm", "_scaled_grouped_mm", "_scaled_mm_v2", "scaled_grouped_mm"}


def work_of(name: str, args: tuple[Any, ...]) -> tuple[float, torch.dtype | None]:
    """FLOP of a torch function, and the type of its first operand; none for what only moves bytes."""
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    if not tensors:
        return 0.0, None
    first = tensors[0]
    if name in _BY_LAST and len(tensors) > 1:
        return 2.0 * first.numel() * tensors[1].shape[-1], first.dtype
    if name in ("linear", "_weight_int8pack_mm"):
        return 2.0 * first.numel() * tensors[1].shape[0], first.dtype
    if name in ("_weight_int4pack_mm", "_weight_int4pack_mm_for_cpu"):
        return 2.0 * first.numel() * tensors[-1].shape[1], first.dtype
    if name == "scaled_dot_product_attention":
        batch, heads, new, width = first.shape
        return _attention(batch * heads, new, tensors[1].shape[-2], width + tensors[2].shape[-1]), first.dtype
    if name == "_flash_attention_forward":
        batch, new, heads, width = first.shape
        return _attention(batch * heads, new, tensors[1].shape[1], 2 * width), first.dtype
    return 0.0, first.dtype


def _attention(heads: int, new: int, length: int, widths: int) -> float:
    """A causal attention of ``new`` queries, the last of which sees every key."""
    seen = new * (length - new) + new * (new + 1) / 2 if length >= new else new * length
    return 2.0 * heads * seen * widths
