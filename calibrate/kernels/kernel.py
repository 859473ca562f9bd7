"""What a kernel is: operands, the call that is timed, and the same result in float64 to check it against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from calibrate.kernels.operands import OperandPool, Operands
from inferplan.units import Num
from inferplan.work.formats import Format


@dataclass(frozen=True, kw_only=True, eq=False)
class Kernel:
    """One operator on a device: ``run(*operands())`` is the call that is timed.

    name: the library call, for the record. operands: a fresh set. reference: the same result in float64 from the same
    operands. tolerance: the relative error (of the Frobenius norm) that the formats allow.
    """

    name: str
    operands: Callable[[], Operands]
    run: Callable[..., Any]
    reference: Callable[..., Any]
    tolerance: float = 1e-2
    library: str = "torch"
    """Whose kernel runs (``cublas``, ``flash-attention-3``, ...); ``torch`` for what torch puts together itself."""
    compared: Callable[[torch.Tensor], torch.Tensor] = lambda result: result
    """What of the result is held against the reference: not the rows that a layout adds between the experts'."""


Builder = Callable[[Any, OperandPool], Kernel]


def check(kernel: Kernel) -> float:
    """``|result - reference|/|reference|`` of one run on fresh operands; the reference is computed on the CPU, because
    not every device has float64 (MPS has none)."""
    operands = kernel.operands()
    copies = tuple(_copied(operand) for operand in operands)  # a kernel may bring its state up to date in place
    result = kernel.compared(kernel.run(*operands)).cpu().double()
    expected = kernel.reference(*copies).cpu().double()
    if result.shape[0] > expected.shape[0]:
        result = result[: expected.shape[0]]
    return float((result - expected).norm() / expected.norm().clamp_min(1e-30))


def _copied(operand: Any) -> Any:
    if isinstance(operand, tuple):
        return tuple(map(_copied, operand))
    return operand.clone().cpu() if isinstance(operand, torch.Tensor) else operand


def count_of(number: Num) -> int:
    """A load value as a count of at least one."""
    return max(1, round(float(np.max(number))))


def tolerance_of(fmt: Format, wide: float = 1e-2) -> float:
    """The relative error that a format allows: ``wide`` for all but fp32."""
    return 1e-5 if fmt.name == "fp32" else wide
