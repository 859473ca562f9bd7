"""The loops of plain replicas and pipelines in C (``plain_native.c``); the module is there where ``inferplan compile``
has made it."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from inferplan.serving.clock import Event
from inferplan.serving.cluster import Cluster
from inferplan.serving.plain_pipeline import PlainPipeline
from inferplan.serving.plain_replica import PlainReplica

class Plain:
    """A replica's events. Its queues and all else that the general code reads are the replica's own."""

    def __init__(self, replica: PlainReplica) -> None: ...
    def advance(self, until: float) -> None:
        """As :meth:`PlainReplica.advance`."""
    def submit_all(self, requests: npt.NDArray[np.int64], times: npt.NDArray[np.float64]) -> None:
        """As :meth:`RequestQueue.submit_all`."""
    def left(self, request: int, time: float, finished: bool) -> None:
        """A request has left a replica that :func:`serve` runs."""

class Pipe:
    """A pipeline's events, in the same way."""

    def __init__(self, pipeline: PlainPipeline) -> None: ...
    def advance(self, until: float) -> None:
        """As :meth:`PlainPipeline.advance`."""

def serve(
    cluster: Cluster,
    by_loads: bool,
    requests: npt.NDArray[np.int64] | bytes,
    times: npt.NDArray[np.float64],
    marks: list[Event],
    handler: Callable[[Event], None],
) -> None:
    """As :meth:`Clock.run_until_quiet` of replicas behind a router: for the least loaded with ``by_loads``, else in
    turn.

    requests, times: what is sent, in order of time; no requests: all as they stand. marks: events in order, with each
    of which ``handler`` is called when all replicas have come so far. The events of the cluster are those that its
    processes plan, after which there may be more replicas, or others that take requests; one of a request sends it.
    """
