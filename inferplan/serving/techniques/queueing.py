"""Queues in closed form: how long a single server with Poisson arrivals makes its customers wait.

The planner screens with the M/D/1 forms (:func:`mean_wait`, :func:`tail_wait`); the others are the published forms that
tests hold the simulator against. ``service`` is in seconds, ``rate`` in arrivals a second, and the utilisation is
``rho = rate*service``. Every function raises ``UsageError`` where the queue has no steady state (``rho >= 1``).

- M/G/1, Pollaczek-Khinchine (Kleinrock, Queueing Systems, volume 1, chapter 5): mean wait
  ``rate*E[S^2]/(2*(1 - rho))``. M/D/1 is its case of one length: ``rho*S/(2*(1 - rho))``.
- Tail of M/D/1: an arrival waits with probability ``rho``, and those that wait do so for ``S/(2*(1 - rho))`` on
  average. With an exponential tail of that mean (Kingman, The single server queue in heavy traffic, 1961), a share
  ``q`` of all arrivals waits longer than ``S/(2*(1 - rho))*ln(rho/q)``.
- DistServe (2401.09670, section 3.1): mean TTFT of prompts of one length on one server ``D + R*D^2/(2*(1 - R*D))``, on
  two pipeline stages ``D + R*D^2/(4*(2 - R*D))``, and on two tensor-parallel devices that are K times as fast
  ``D/K + R*D^2/(2*K*(K - R*D))``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from inferplan.errors import UsageError
from inferplan.units import Num


def _require_stable(utilisation: Num) -> None:
    highest = float(np.max(utilisation)) if np.size(utilisation) else 0.0
    if not (highest < 1 and float(np.min(utilisation, initial=0.0)) >= 0):
        raise UsageError(f"no steady state at a load of {highest:.3g}", because="work arrives faster than it is done")


def mean_wait(service: Num, utilisation: Num) -> Num:
    """Mean seconds before service in an M/D/1 queue: ``rho*S/(2*(1 - rho))``.

    service, utilisation: numbers, or arrays that broadcast; the answer has their shape.
    """
    _require_stable(utilisation)
    wait: Num = utilisation * service / (2 * (1 - utilisation))
    return wait


def tail_wait(service: Num, utilisation: Num, share: float) -> Num:
    """Seconds before service that a ``share`` of the customers of an M/D/1 queue exceeds; 0 where fewer wait at all.

    ``S/(2*(1 - rho))*ln(rho/share)``. At ``share`` 0.05 and ``rho`` from 0.2 to 0.95 it is never less than Erlang's
    exact distribution gives, and at most a third of a service time more (tests/serving/test_queueing.py).
    """
    _require_stable(utilisation)
    wait: Num = service / (2 * (1 - utilisation)) * np.log(np.maximum(utilisation / share, 1.0))
    return wait


def mean_wait_of_lengths(rate: float, services: npt.ArrayLike) -> float:
    """Mean seconds before service in an M/G/1 queue; ``services`` are equally likely durations in seconds."""
    durations = np.asarray(services, dtype=np.float64)
    load = rate * float(np.mean(durations))
    _require_stable(load)
    return rate * float(np.mean(durations**2)) / (2 * (1 - load))


def ttft_single(rate: float, service: float) -> float:
    """Mean TTFT on one server: ``D + R*D^2/(2*(1 - R*D))``."""
    return service + float(mean_wait(service, rate * service))


def ttft_pipelined(rate: float, service: float) -> float:
    """Mean TTFT on two pipeline stages of ``service/2`` each: ``D + R*D^2/(4*(2 - R*D))``."""
    return service + float(mean_wait(service / 2, rate * service / 2))


def ttft_tensor_parallel(rate: float, service: float, speedup: float) -> float:
    """Mean TTFT on two devices that do a prompt ``speedup`` times as fast: ``D/K + R*D^2/(2*K*(K - R*D))``."""
    return ttft_single(rate, service / speedup)
