"""Several kernels for one operator: the first that runs and is right, and why those before it were passed over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from calibrate.kernels.kernel import Kernel, check
from calibrate.kernels.operands import NoKernelError, OperandPool

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Option(Generic[T]):
    """One way to run an operator. name: library and call, for the record. make: the kernel, or the refusal of it."""

    name: str
    make: Callable[[], T]


def first_right(options: Sequence[Option[T]], task: str, pool: OperandPool, probe: Callable[[int], Kernel]) -> T:
    """The first option that runs and gives what float64 gives, at a small size; a single option is not tried here.

    task: operator and format, for the record: one option is found for all its shapes. probe: the kernel of an option
    at the small size. Raises :class:`NoKernelError` with every reason when none is right.
    """
    if len(options) == 1:
        return options[0].make()
    if task not in pool.choices:
        pool.choices[task] = _search(options, task, pool, probe)
    found = pool.choices[task]
    if isinstance(found, NoKernelError):
        raise NoKernelError(found.what, because=found.because, hint=found.hint)
    return options[found].make()


def _search(
    options: Sequence[Option[T]], task: str, pool: OperandPool, probe: Callable[[int], Kernel]
) -> int | NoKernelError:
    reasons = []
    for index, option in enumerate(options):
        reason = _fault(probe, index, pool)
        if reason is None:
            return index
        pool.passed_over[option.name, task] = reason
        reasons.append(f"{option.name}: {reason}")
    return NoKernelError(f"no kernel for {task} is right on {pool.target}", because="; ".join(reasons))


def _fault(probe: Callable[[int], Kernel], index: int, pool: OperandPool) -> str | None:
    """Why an option cannot be used; ``None`` when it can."""
    try:
        kernel = probe(index)
        error = check(kernel)
    except NoKernelError as refused:
        return f"{refused.what} ({refused.because})" if refused.because else refused.what
    except torch.OutOfMemoryError:
        raise
    except Exception as failed:  # an optional library fails in any way it likes: another version, another signature
        if pool.device == "cuda":
            torch.cuda.synchronize()  # an error that sticks is raised again here, and ends the run
        return f"{type(failed).__name__}: {first_line(failed)}"
    if not error <= kernel.tolerance:
        return f"{error:.2g} off its float64 reference, more than {kernel.tolerance:g}"
    return None


def first_line(error: BaseException) -> str:
    """The first line of an error's text that says something, 200 characters at most."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:200]


def passed_over(pool: OperandPool) -> dict[str, str]:
    """Why each library or call was not used; for which operators, where it is not the same for several."""
    tasks: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (name, task), reason in pool.passed_over.items():
        tasks[name, reason].append(task)
    told: dict[str, list[str]] = defaultdict(list)
    for (name, reason), found in tasks.items():
        told[name].append(f"{reason}, for {found[0] if len(found) == 1 else f'{len(found)} operators and formats'}")
    return {name: "; ".join(reasons) for name, reasons in told.items()}


def refusal_of(error: NoKernelError) -> str:
    """A refusal in one line: what, because, and what would work."""
    because = f" ({error.because})" if error.because else ""
    return f"{error.what}{because}{f'; what would work: {error.hint}' if error.hint else ''}"
