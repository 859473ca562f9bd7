"""What a run may take of a device's memory: planned from what is free when it begins, not from what was soldered on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from calibrate.device import machine
from calibrate.device.device import Device
from calibrate.kernels.operands import fill_rate

FILL_SHARE = 0.1
"""Share of a run's time in which a CPU could fill one block of operands."""
SMALLEST_BLOCK = 64 << 20
"""Bytes of the smallest block: it holds two operands of 32 MB."""
LARGEST_BLOCK = 8 << 30
TYPES = 7
"""Element types that may each get a block: fp32, bf16, fp16, fp8, int8, int16 and int32."""
BLOCKS, OPERANDS, RESULTS, MODEL = 0.35, 0.15, 0.1, 0.9
"""Shares of the free memory: all blocks together; the operands of one operator, of which two sets and a result live at
once; the results that a graph keeps apart; and a whole model with its cache, when the blocks are gone."""


def free_memory(kind: str) -> float:
    """Bytes that this process may still take on a kind of device, its own unused reserve included."""
    if kind == "cuda":
        free, _ = torch.cuda.mem_get_info()
        return float(free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated())
    if kind == "mps":
        return float(torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
    return machine.memory_available()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """block: bytes of random values of each element type. operands: bytes of the largest operator's. results: bytes of
    results that a graph keeps apart."""

    block: float
    operands: float
    results: float


def planned(device: Device, block: float, free: float) -> Plan:
    """What a run with blocks of ``block`` bytes takes of ``free`` bytes.

    At the most ``BLOCKS + 3*OPERANDS + RESULTS`` = 0.9 of them: the blocks of all types, two sets of the largest
    operands and a result as large, and what a graph keeps.
    """
    if device.kind != "cuda":
        return Plan(block=block, operands=block / 2, results=0.0)
    return Plan(block=block, operands=OPERANDS * free, results=min(3 * device.cache, RESULTS * free))


def block_bytes(device: Device, budget: float, short: bool = False, free: float | None = None) -> float:
    """Bytes of random values of each type: eight caches' worth at least (four in a short run), 8 GiB at most, and no
    more than all types together may take of the ``free`` bytes (asked of the device when not given).

    On a CPU never more than is made in :data:`FILL_SHARE` of ``budget`` [s]: a virtual machine of two cores may report
    the cache of its whole host, and fresh memory may come slowly, so that making operands would be all that is done.
    """
    room = free_memory(device.kind) if free is None else free
    if short:
        size = 4.0 * device.cache
    else:
        part = {"cuda": 0.05, "mps": 0.05, "cpu": 0.02}[device.kind] * device.memory
        size = min(max(part, 8 * device.cache, 128 << 20), LARGEST_BLOCK)
    if device.kind != "cpu":
        return min(max(size, SMALLEST_BLOCK), BLOCKS * room / TYPES)
    return min(size, max(FILL_SHARE * budget * fill_rate(device.kind), SMALLEST_BLOCK))
