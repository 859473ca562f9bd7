"""A request that no client wants any more leaves its engine, wherever it is there."""

from __future__ import annotations

from inferplan.serving.clients import LAST
from inferplan.serving.scheduler import Scheduler


def abort(scheduler: Scheduler, request: int) -> None:
    """It leaves between two steps, and its cache is free again; what it has computed can be found as any other's can.

    Not for a static batch, nor for a request in a lane other than the one whose turn it is.
    """
    admitted, progress, clients = scheduler.admitted, scheduler.progress, scheduler.clients
    done = (request, LAST) in clients.unseen
    clients.unseen = [entry for entry in clients.unseen if entry[0] != request]
    if request in scheduler.decodes.requests:
        tokens, left = scheduler.decodes.remove(request)
        admitted.remaining -= left
        admitted.release(request, tokens)
    elif request == scheduler.partial:
        scheduler.partial = None
        admitted.remaining -= progress.output(request)
        admitted.release(request, scheduler.computed)
    elif not done:
        scheduler.queue.drop(request)
    progress.forget(request)
    admitted.own.pop(request, None)
