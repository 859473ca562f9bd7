"""Operands: views of large blocks of random values, one after another, so that no call finds its own in a cache."""

from __future__ import annotations

from math import prod

import torch

from inferplan.errors import MissingFactError
from inferplan.work.formats import Format

DTYPES: dict[str, torch.dtype] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
}
"""The torch type of each format that is stored an element at a time."""
_TILE = 1 << 22
_ALIGN = 256


class NoKernelError(MissingFactError):
    """torch has no call for this operator in these formats on this device (exit 2 when it is all that was asked)."""


def dtype_of(fmt: Format) -> torch.dtype:
    """The torch type that stores a format. Raises :class:`NoKernelError` for one that torch has no type for."""
    if fmt.name not in DTYPES:
        raise NoKernelError(f"torch has no element type for {fmt.name}")
    return DTYPES[fmt.name]


class Arena:
    """Random tensors on a device. Each type has one block of ``size`` bytes, and successive operands are successive
    slices of it, round and round; an operand of more than half a block gets memory of its own.

    Values are standard normal (small integers are uniform): zeros would run faster than real data does.
    """

    def __init__(self, device: str, size: int, seed: int = 0) -> None:
        self.device, self.size = device, size
        self.generator = torch.Generator(device=device)
        self.generator.manual_seed(seed)
        self._blocks: dict[torch.dtype, torch.Tensor] = {}
        self._next: dict[torch.dtype, int] = {}

    def capacity(self, dtype: torch.dtype) -> int:
        """Elements of one block."""
        return int(self.size // dtype.itemsize)

    def normal(self, shape: tuple[int, ...], fmt: Format) -> torch.Tensor:
        """An operand in a format."""
        return self.typed(shape, dtype_of(fmt))

    def typed(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An operand of a torch type."""
        elements = prod(shape)
        if elements > self.capacity(dtype) // 2:
            return self._random(elements, dtype).view(shape)
        block = self._blocks.get(dtype)
        if block is None:
            block = self._blocks[dtype] = self._random(self.capacity(dtype), dtype)
        start = self._next.get(dtype, 0)
        if start + elements > block.numel():
            start = 0
        step = _ALIGN // dtype.itemsize
        self._next[dtype] = -(-(start + elements) // step) * step
        return block[start : start + elements].view(shape)

    def positive(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Scales in fp32 between a half and one and a half."""
        return torch.rand(shape, device=self.device, generator=self.generator) + 0.5

    def integers(self, shape: tuple[int, ...], below: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """Uniform whole numbers below a bound."""
        return torch.randint(below, shape, dtype=dtype, device=self.device, generator=self.generator)

    def _random(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """A tile of random values, repeated: as random to the hardware, and quick to make."""
        size = min(elements, _TILE)
        if dtype is torch.int8:
            tile = self.integers((size,), 255, torch.int16).sub_(127).to(dtype)
        else:
            tile = torch.randn(size, device=self.device, generator=self.generator).to(dtype)
        if size == elements:
            return tile
        whole = torch.empty(elements, dtype=dtype, device=self.device)
        for start in range(0, elements, size):
            part = min(size, elements - start)
            whole[start : start + part].copy_(tile[:part])
        return whole
