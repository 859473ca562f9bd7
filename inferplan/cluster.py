"""A Dask cluster: other machines, or processes of its own, that compute parts of an answer."""

from __future__ import annotations

from typing import Any

from inferplan.errors import MissingExtraError, UsageError
from inferplan.extras import installs

_ANSWERS = 20.0
"""Seconds within which a scheduler answers."""


def client_of(scheduler: str | None, workers: int | None = None) -> Any:
    """A client of the cluster at an address; without one of a new cluster here, of so many workers.

    Raises ``MissingExtraError`` without dask, ``UsageError`` where no scheduler answers.
    """
    try:
        from dask.distributed import Client
    except ImportError:
        raise MissingExtraError("dask is not installed", hint=installs("dask")) from None
    try:
        if scheduler is not None:
            return Client(scheduler, timeout=_ANSWERS)
        here: dict[str, Any] = {} if workers is None else {"n_workers": workers, "threads_per_worker": 1}
        return Client(**here, dashboard_address=None)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"no dask scheduler answers at {scheduler}",
            because=str(error),
            hint="the address that dask scheduler prints: tcp://host:8786",
        ) from None
