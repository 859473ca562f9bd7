"""A request that no client wants any more leaves its engine, wherever it is there."""

from __future__ import annotations

from inferplan.serving.clients import LAST
from inferplan.serving.scheduler import Scheduler


def abort(scheduler: Scheduler, request: int) -> None:
    """It leaves between two steps, and its cache is free again; what it has computed can be found as any other's can.

    One that is in a batch in flight leaves too: the batch goes on as it was sent, and what it makes of the request is
    dropped when it is back (vLLM ``v1/core/sched/scheduler.py``, ``finish_requests`` and ``update_from_output``: "the
    request is already finished", as with pipelines). Not for a static batch.
    """
    admitted, progress, clients = scheduler.admitted, scheduler.progress, scheduler.clients
    done = (request, LAST) in clients.unseen
    clients.unseen = [entry for entry in clients.unseen if entry[0] != request]
    lane = next((lane for lane in scheduler.lanes if request in lane.requests), None)
    if lane is not None:
        tokens, left = lane.remove(request)
        admitted.remaining -= left
        admitted.release(request, tokens)
    elif request == scheduler.partial:
        scheduler.partial = None
        admitted.remaining -= progress.output(request)
        admitted.release(request, scheduler.computed)
    elif request in admitted.running:  # the end of its prompt is in flight
        admitted.remaining -= progress.output(request)
        admitted.release(request, progress.compute(request))
    elif not done:
        scheduler.queue.drop(request)
    progress.forget(request)
    admitted.own.pop(request, None)
