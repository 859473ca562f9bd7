"""Queues in closed form: what a single server with Poisson arrivals makes its customers wait.

``rate`` is arrivals a second, ``service`` seconds. Every function raises ``UsageError`` where the queue has no steady
state (``rate*service >= 1``).

- M/G/1, Pollaczek-Khinchine: mean wait ``R*E[S^2]/(2*(1 - R*E[S]))``; M/D/1 is its case of one length.
- DistServe (2401.09670, section 3.1): mean TTFT of prompts of one length on one server ``D + R*D^2/(2*(1 - R*D))``, on
  two pipeline stages ``D + R*D^2/(4*(2 - R*D))``, and on two tensor-parallel devices that are K times as fast
  ``D/K + R*D^2/(2*K*(K - R*D))``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from inferplan.errors import UsageError


def _stable(load: float) -> None:
    if not 0 <= load < 1:
        raise UsageError(f"no steady state at a load of {load:.3g}", because="work arrives faster than it is done")


def mean_wait(rate: float, services: npt.ArrayLike) -> float:
    """Mean seconds a customer of an M/G/1 queue waits before service; ``services`` are equally likely durations."""
    durations = np.asarray(services, dtype=np.float64)
    load = rate * float(np.mean(durations))
    _stable(load)
    return rate * float(np.mean(durations**2)) / (2 * (1 - load))


def ttft_single(rate: float, service: float) -> float:
    """Mean TTFT on one server: ``D + R*D^2/(2*(1 - R*D))``."""
    return service + mean_wait(rate, [service])


def ttft_pipelined(rate: float, service: float) -> float:
    """Mean TTFT on two pipeline stages of ``service/2`` each: ``D + R*D^2/(4*(2 - R*D))``."""
    return service + mean_wait(rate, [service / 2])


def ttft_tensor_parallel(rate: float, service: float, speedup: float) -> float:
    """Mean TTFT on two devices that do a prompt ``speedup`` times as fast: ``D/K + R*D^2/(2*K*(K - R*D))``."""
    return ttft_single(rate, service / speedup)
