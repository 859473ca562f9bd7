"""Collectives of the process group that is up, what each ought to give, and the libraries beside the usual one.

Every process draws equal random values and takes them times ``2**-rank``: what the others have is then known to each,
to the last bit, and a result that left one of them out or took one twice is wrong by far more than rounding.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

from calibrate.kernels.kernel import Kernel, count_of
from calibrate.kernels.operands import NoKernelError, OperandPool, Operands
from inferplan.work.ops import Collective, Exchange

Call = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""A collective: the process's own values and memory for the result; returns the result."""
Expected = Callable[[torch.Tensor], torch.Tensor]
MULTIMEM = {9: (4, 6, 8), 10: (6, 8)}
"""Group sizes in which the switch adds, by the generation of the devices (vLLM, ``symm_mem.py``); else two shots."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CollectiveKernel(Kernel):
    """A kernel of several processes. capturing: what must be around the capture of a graph that holds it."""

    capturing: Callable[[], AbstractContextManager[None]] = nullcontext


def collective_kernel(op: Collective, pool: OperandPool) -> CollectiveKernel:
    """A collective of the process group that is up; without one of the operator's size there is nothing to call."""
    group = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if group != op.group:
        raise NoKernelError(
            f"a collective over {op.group} devices needs a process group of that size",
            because=f"there is one of {group}",
        )
    mean = pool.device == "cuda"  # where the library can average: a sum in place would grow without end
    calls: dict[str, tuple[Call, Expected]] = {
        "all_reduce": (_average if mean else _sum, _reduced(group, mean)),
        "all_gather": (_all_gather, lambda x: torch.cat([_of(x.chunk(group)[0], rank) for rank in range(group)])),
        "reduce_scatter": (_reduce_scatter, lambda x: _reduced(group, False)(x.chunk(group)[dist.get_rank()])),
        "all_to_all": (
            _all_to_all,
            lambda x: torch.cat([_of(x.chunk(group)[dist.get_rank()], rank) for rank in range(group)]),
        ),
        "send": (_send, lambda x: x.double() * (2.0 if dist.get_rank() % 2 else 1.0)),
    }
    if op.pattern not in calls:
        raise NoKernelError(f"torch.distributed has no {op.pattern}")
    run, reference = calls[op.pattern]
    backend = dist.get_backend()
    return CollectiveKernel(
        name=f"torch.distributed {op.pattern} ({backend})",
        operands=_operands(op, pool, group),
        run=run,
        reference=lambda x, out: reference(x),
        tolerance=2e-2,
        library="rccl" if backend == "nccl" and torch.version.hip else backend,
    )


def _operands(op: Collective, pool: OperandPool, group: int) -> Callable[[], Operands]:
    """Values of a process, a multiple of the group of them, and memory for what comes out."""
    elements = -(-count_of(op.elements) // group) * group
    results = elements // group if op.pattern == "reduce_scatter" else elements

    def operands() -> Operands:
        values = pool.normal((elements,), op.format) * 2.0 ** -dist.get_rank()
        return values, torch.empty(results, dtype=values.dtype, device=values.device)

    return operands


def _of(own: torch.Tensor, rank: int) -> torch.Tensor:
    """What another process has where this one has ``own``."""
    return own.double() * 2.0 ** (dist.get_rank() - rank)


def _reduced(group: int, mean: bool) -> Expected:
    factor = sum(2.0**-rank for rank in range(group)) / (group if mean else 1)
    return lambda x: _of(x, 0) * factor


def _average(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    return x


def _sum(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(out.copy_(x))
    return out


def _all_gather(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13
    gather(out, x.chunk(dist.get_world_size())[0])
    return out


def _reduce_scatter(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # renamed in torch 2.13
    scatter(out, x)
    return out


def _all_to_all(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    dist.all_to_all_single(out, x)
    return out


def _send(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """From every even rank to the next one; the last of an odd number has nobody to send to."""
    rank = dist.get_rank()
    if rank % 2:
        dist.recv(out, rank - 1)
        return out
    if rank + 1 < dist.get_world_size():
        dist.send(x, rank + 1)
    return x


class AllReduce(Protocol):
    """A library of all-reduces beside the usual one, set up in every process of the group."""

    name: str

    def kernel(self, op: Collective, pool: OperandPool) -> CollectiveKernel:
        """An all-reduce. Raises :class:`NoKernelError` for a message that the library does not take."""


class SymmetricMemory:
    """torch's symmetric memory as vLLM calls it: copied in, added by the switch or in two shots, copied out."""

    name = "torch-symmetric-memory"

    def __init__(self, largest: int, device: torch.device) -> None:
        if torch.version.hip:
            raise NoKernelError("no symmetric memory", because="vLLM uses it on NVIDIA's devices only")
        memory = importlib.import_module("torch.distributed._symmetric_memory")
        self._group = dist.group.WORLD.group_name
        self._buffer = memory.empty(largest, dtype=torch.bfloat16, device=device)
        handle = memory.rendezvous(self._buffer, self._group)
        if not handle.multicast_ptr:
            raise NoKernelError("no symmetric memory", because="these devices have no multicast, and vLLM wants it")
        generation = torch.cuda.get_device_capability(device)[0]
        self._switch = dist.get_world_size() in MULTIMEM.get(generation, ())

    def kernel(self, op: Collective, pool: OperandPool) -> CollectiveKernel:
        """The all-reduce of a message in bf16 that the buffer holds. Raises :class:`NoKernelError` for another."""
        usual = collective_kernel(op, pool)
        if op.format.name != "bf16" or count_of(op.elements) > len(self._buffer):
            raise NoKernelError(f"symmetric memory holds {len(self._buffer)} elements of bf16")
        reduce = torch.ops.symm_mem.multimem_all_reduce_ if self._switch else torch.ops.symm_mem.two_shot_all_reduce_

        def run(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
            shared = self._buffer[: len(x)]
            shared.copy_(x)
            reduce(shared, "sum", self._group)
            return out.copy_(shared)

        return _reducing(op, usual, run, self.name, "multimem_all_reduce_" if self._switch else "two_shot_all_reduce_")


class VllmCustom:
    """vLLM's own all-reduce over memory that the devices map of each other."""

    name = "vllm-custom-all-reduce"

    def __init__(self, largest: int, device: torch.device) -> None:
        module = importlib.import_module("vllm.distributed.device_communicators.custom_all_reduce")
        self._made: Any = module.CustomAllreduce(group=dist.new_group(backend="gloo"), device=device)
        if self._made.disabled:
            raise NoKernelError("vLLM's custom all-reduce is off here", because="its own checks turned it off")

    def kernel(self, op: Collective, pool: OperandPool) -> CollectiveKernel:
        """The all-reduce of a message that vLLM gives to it. Raises :class:`NoKernelError` for another."""
        usual = collective_kernel(op, pool)
        if not self._made.should_custom_ar(usual.operands()[0]):
            raise NoKernelError(f"vLLM leaves {count_of(op.elements)} elements to another library")

        def run(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self._made.custom_all_reduce(x)
            return result

        return _reducing(op, usual, run, self.name, "CustomAllreduce", self._made.capture)


def _reducing(
    op: Collective,
    usual: CollectiveKernel,
    run: Call,
    library: str,
    call: str,
    capturing: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> CollectiveKernel:
    """An all-reduce of another library, that adds and does not average."""
    return CollectiveKernel(
        name=f"{library} {call}",
        operands=usual.operands,
        run=run,
        reference=lambda x, out: _reduced(op.group, False)(x),
        tolerance=usual.tolerance,
        library=library,
        capturing=capturing,
    )


ALL_REDUCES: tuple[type[SymmetricMemory] | type[VllmCustom], ...] = (SymmetricMemory, VllmCustom)
"""Further libraries of all-reduces on accelerators: set up, and left out where that fails."""


def exchange_kernel(op: Exchange, pool: OperandPool) -> Kernel:
    """Always refused: dispatch and combine are kernels that engines bring (DeepEP, TensorRT-LLM), torch has none."""
    raise NoKernelError(
        f"torch has no {op.kernel} of tokens to experts",
        because="it is a kernel of DeepEP or TensorRT-LLM, over the nodes of a cluster",
        hint="fit it from tables of those: python -m tools.fitting tables",
    )
