"""Operands: views of large blocks of random values, one after another, so that no call finds its own in a cache."""

from __future__ import annotations

import time
from collections.abc import Hashable
from math import prod
from typing import Any

import torch

from calibrate.kernels.target import Target, target_of
from inferplan.errors import MissingFactError
from inferplan.work.formats import Format

Operands = tuple[Any, ...]
"""What a kernel is called with: tensors, and tuples of a tensor and its scales."""
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
_PROBE = 32 << 20


class NoKernelError(MissingFactError):
    """There is no call for this operator in these formats on this device (exit 2 when it is all that was asked)."""


def dtype_of(fmt: Format, target: Target | None = None) -> torch.dtype:
    """The torch type that stores a format on a device. Raises :class:`NoKernelError` where torch has no type for it.

    fp8 is e4m3fnuz on CDNA 3 (no infinities, no negative zero) and e4m3fn everywhere else; MPS has none.
    """
    if fmt.name not in DTYPES:
        raise NoKernelError(f"torch has no element type for {fmt.name}")
    if fmt.name == "fp8" and target is not None:
        if target.kind == "mps":
            raise NoKernelError("MPS has no fp8", hint="bf16, fp16, int8 or int4 weights")
        return torch.float8_e4m3fnuz if target.fnuz else torch.float8_e4m3fn
    return DTYPES[fmt.name]


class Block:
    """Memory of one type, handed out in successive slices, round and round.

    It is filled as far as it has been handed out, never further: the first write to fresh memory is slow where a
    virtual machine must find the pages first (0.4 GB/s has been seen), and most types never need their whole block.
    """

    def __init__(self, memory: torch.Tensor, tile: torch.Tensor) -> None:
        self.memory, self._tile = memory, tile
        self.filled, self._next = 0, 0

    def take(self, elements: int) -> torch.Tensor:
        """The next ``elements``, at most as many as the block has; slices begin at multiples of 256 bytes."""
        start = 0 if self._next + elements > self.memory.numel() else self._next
        end = start + elements
        step = _ALIGN // self.memory.dtype.itemsize
        self._next = -(-end // step) * step
        while self.filled < end:
            part = min(len(self._tile), self.memory.numel() - self.filled)
            self.memory[self.filled : self.filled + part].copy_(self._tile[:part])
            self.filled += part
        return self.memory[start:end]


def fill_rate(device: str) -> float:
    """Bytes a second at which memory that was never used takes its first values."""
    begun = time.perf_counter()
    torch.empty(_PROBE, dtype=torch.int8, device=device).fill_(1)
    return _PROBE / max(time.perf_counter() - begun, 1e-9)


class OperandPool:
    """Random tensors on a device. Each type has one block of ``size`` bytes, and successive operands are successive
    slices of it; an operand of more than half a block gets memory of its own.

    Values are standard normal (small integers are uniform): zeros would run faster than real data does. target: the
    device's generation, which decides between kernels; read from the device unless it is given.
    """

    def __init__(self, device: str, size: int, seed: int = 0, target: Target | None = None) -> None:
        self.device, self.size = device, size
        self.target = target or target_of(device)
        self.choices: dict[Hashable, int | NoKernelError] = {}
        """Which of several kernels was right (:func:`calibrate.kernels.choice.first_right`)."""
        self.passed_over: dict[tuple[str, str], str] = {}
        """Why libraries and calls could not be used, by their name and by operator and format."""
        self.generator = torch.Generator(device=device)
        self.generator.manual_seed(seed)
        self._blocks: dict[torch.dtype, Block] = {}
        self._rooms: dict[tuple[str, int], torch.Tensor] = {}

    def room(self, name: str, size: int) -> torch.Tensor:
        """Zeroed bytes that a library works in, the same for all of its kernels, as an engine keeps them."""
        if (name, size) not in self._rooms:
            self._rooms[name, size] = torch.zeros(size, dtype=torch.uint8, device=self.device)
        return self._rooms[name, size]

    def capacity(self, dtype: torch.dtype) -> int:
        """Elements of one block."""
        return int(self.size // dtype.itemsize)

    @property
    def bytes(self) -> float:
        """Bytes of the blocks that there are."""
        return float(sum(block.memory.nbytes for block in self._blocks.values()))

    def release(self) -> None:
        """Give every block back; the next operand of a type makes a new one."""
        self._blocks.clear()
        self._rooms.clear()

    def normal(self, shape: tuple[int, ...], fmt: Format) -> torch.Tensor:
        """An operand in a format."""
        return self.typed(shape, self.dtype_of(fmt))

    def dtype_of(self, fmt: Format) -> torch.dtype:
        """The type that stores a format on this device (:func:`dtype_of`)."""
        return dtype_of(fmt, self.target)

    def typed(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An operand of a torch type."""
        elements = prod(shape)
        if elements > self.capacity(dtype) // 2:
            return self._random(elements, dtype).view(shape)
        block = self._blocks.get(dtype)
        if block is None:
            memory = torch.empty(self.capacity(dtype), dtype=dtype, device=self.device)
            block = self._blocks[dtype] = Block(memory, self._tile(min(memory.numel(), _TILE), dtype))
        return block.take(elements).view(shape)

    def positive(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Scales in fp32 between a half and one and a half."""
        return torch.rand(shape, device=self.device, generator=self.generator) + 0.5

    def powers(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Scales in fp32 of a half, one or two: what an exponent alone can hold (e8m0)."""
        return torch.exp2(self.integers(shape, 3).float() - 1.0)

    def order(self, count: int) -> torch.Tensor:
        """The numbers below ``count`` in any order: pages of a cache that was in use for long, as int32."""
        shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(count))
        return shuffled.to(torch.int32).to(self.device)

    def integers(self, shape: tuple[int, ...], below: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """Uniform whole numbers below a bound."""
        return torch.randint(below, shape, dtype=dtype, device=self.device, generator=self.generator)

    def _random(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """A tile of random values, repeated: as random to the hardware, and quick to make."""
        memory = torch.empty(elements, dtype=dtype, device=self.device)
        return Block(memory, self._tile(min(elements, _TILE), dtype)).take(elements)

    def _tile(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        if dtype is torch.int8:
            return self.integers((size,), 255, torch.int16).sub_(127).to(dtype)
        return torch.randn(size, device=self.device, generator=self.generator).to(dtype)
