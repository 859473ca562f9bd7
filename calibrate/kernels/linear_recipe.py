"""A linear layer in a pair of formats: operands, product, exact product, and the sizes that its layout holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from calibrate.kernels.operands import NoKernelError, Operands

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]).double()
"""The value of each code of fp4."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Linear:
    """``x [m, k] -> y [m, n]`` in a pair of formats: how operands are made, multiplied, and multiplied exactly.

    name: the library call. library: whose it is. weight(n, k), input(m, k): fresh operands. tolerance: the relative
    error the formats allow. multiples: what n and k must be multiples of.
    """

    name: str
    weight: Callable[[int, int], Operands]
    input: Callable[[int, int], Operands]
    apply: Callable[[Operands, Operands], torch.Tensor]
    exact: Callable[[Operands, Operands], torch.Tensor]
    tolerance: float = 1e-2
    library: str = "torch"
    multiples: tuple[int, int] = (1, 1)

    def demand(self, n: int, k: int) -> None:
        """Raises :class:`NoKernelError` for a size that the layout cannot hold."""
        if n % self.multiples[0] or k % self.multiples[1]:
            wanted = f"n in multiples of {self.multiples[0]} and k in multiples of {self.multiples[1]}"
            raise NoKernelError(f"{self.name} wants {wanted}, not n = {n}, k = {k}")
