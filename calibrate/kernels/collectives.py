"""Collectives of the process group that is up, and what each ought to give."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from calibrate.kernels.kernel import Kernel, count_of
from calibrate.kernels.operands import NoKernelError, OperandPool
from inferplan.work.ops import Collective, Exchange


def collective_kernel(op: Collective, pool: OperandPool) -> Kernel:
    """A collective of the process group that is up; without one of the operator's size there is nothing to call."""
    group = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if group != op.group:
        raise NoKernelError(
            f"a collective over {op.group} devices needs a process group of that size",
            because=f"there is one of {group}",
        )
    elements = -(-count_of(op.elements) // group) * group
    calls: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]] = {
        "all_reduce": (_all_reduce, lambda x: x.double() * (1 if pool.device == "cuda" else group)),
        "all_gather": (_all_gather, lambda x: x.double().chunk(group)[0].repeat(group)),
        "reduce_scatter": (_reduce_scatter, lambda x: x.double().chunk(group)[dist.get_rank()] * group),
        "all_to_all": (_all_to_all, lambda x: x.double().chunk(group)[dist.get_rank()].repeat(group)),
        "send": (_send, lambda x: x.double()),
    }
    if op.pattern not in calls:
        raise NoKernelError(f"torch.distributed has no {op.pattern}")
    run, reference = calls[op.pattern]
    return Kernel(
        name=f"torch.distributed {op.pattern} ({dist.get_backend()})",
        operands=lambda: (pool.normal((elements,), op.format).clone(),),
        run=run,
        reference=reference,
        tolerance=2e-2,
    )


def exchange_kernel(op: Exchange, pool: OperandPool) -> Kernel:
    """Always refused: dispatch and combine are kernels that engines bring (DeepEP, TensorRT-LLM), torch has none."""
    raise NoKernelError(
        f"torch has no {op.kernel} of tokens to experts",
        because="it is a kernel of DeepEP or TensorRT-LLM, over the nodes of a cluster",
        hint="fit it from tables of those: python -m calibrate fit-tables",
    )


def _all_reduce(x: torch.Tensor) -> torch.Tensor:
    """In place where the library can average (a sum would grow without end), else on a copy."""
    if x.device.type == "cuda":
        dist.all_reduce(x, op=dist.ReduceOp.AVG)
        return x
    total = x.clone()
    dist.all_reduce(total)
    return total


def _all_gather(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13
    gather(out, x.chunk(dist.get_world_size())[0])
    return out


def _reduce_scatter(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x[: len(x) // dist.get_world_size()])
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # renamed in torch 2.13
    scatter(out, x)
    return out


def _all_to_all(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x)
    return out


def _send(x: torch.Tensor) -> torch.Tensor:
    """From every even rank to the next one."""
    rank = dist.get_rank()
    if rank % 2 == 0:
        dist.send(x, rank + 1)
    else:
        dist.recv(x, rank - 1)
    return x
