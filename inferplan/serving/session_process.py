"""Users of sessions of agents on the clock of a cluster: calls that wait for several others, and users who give up."""

from __future__ import annotations

import heapq
from math import inf

from inferplan.serving.aborts import abort
from inferplan.serving.clock import Event
from inferplan.serving.cluster import ANSWERED, END, SENT, EngineKind
from inferplan.serving.cluster_run import ClusterRun
from inferplan.serving.records import CANCELLED, FINISHED, NAN, WAITING
from inferplan.serving.routing import Router
from inferplan.serving.session_senders import Sending, SessionSenders

_LEAVES = SENT + 20
"""What may happen beside the events of a cluster: the user of a session gives up, who is named by its first call."""


class SessionProcess:
    """The users of a run whose requests are calls of sessions."""

    connects = watches = True

    def __init__(self, cluster: ClusterRun) -> None:
        self.cluster, self.records = cluster, cluster.records
        self.senders = cluster.senders = SessionSenders(cluster.records, cluster.closed)
        cluster.add(self, {SENT: self._send, ANSWERED: self._answered, _LEAVES: self._leaves})

    def start(self, kind: EngineKind) -> None:
        """The engines are made."""

    def planned(self) -> list[Event]:
        """Nothing is known ahead."""
        return []

    def ended(self, request: int, time: float, rank: int) -> None:
        """What follows an answer is an event of its own."""

    def _answered(self, event: Event) -> None:
        """An answer brings calls of the same session, or another session."""
        self._follow(self.senders.answered(event[1], event[0]))

    def _follow(self, sendings: list[Sending]) -> None:
        for when, call in sendings:
            heapq.heappush(self.cluster.events, (when, call, SENT if call >= 0 else END))

    def _send(self, event: Event) -> None:
        time, request, _ = event
        if not self.senders.sends(request, time):
            return
        patience = self.senders.patience[self.senders.session[request]]
        if patience < inf and not self.senders.ready[request] and self._begins(request):
            heapq.heappush(self.cluster.events, (time + patience, request, _LEAVES))
        self.cluster.sends(event)

    def _begins(self, request: int) -> bool:
        follows = self.records.follows
        return follows is None or follows[request] < 0

    def _leaves(self, event: Event) -> None:
        """A user gives up on the session of a call, its first: what runs is aborted, nothing more is sent.

        A step is not stopped: an engine drops a call, and frees its cache, when the step in progress ends. What such a
        step has finished by then was for nobody.
        """
        time, first, _ = event
        senders, records = self.senders, self.records
        session = senders.session[first]
        if senders.ended.get(session, inf) <= time:
            return
        records.left[session] = time
        for call in senders.calls(session):
            if not self._drop(call, time) and not (records.status[call] == FINISHED and records.finish[call] > time):
                continue
            records.status[call], records.finish[call] = CANCELLED, time
            if not records.first[call] <= time:
                records.first[call] = NAN
        if session not in senders.ended:
            senders.ended[session] = time
            self._follow(senders.another(time))

    def _drop(self, call: int, time: float) -> bool:
        """A call leaves wherever it is; whether it was anywhere."""
        cluster, status = self.cluster, self.records.status
        where = self._where(call)
        if call in self.senders.running and where is not None:
            cluster.advance(cluster.engine_of[where.pool[where.home[call]]], time)  # it says nothing before that
            where = self._where(call)
        if call not in self.senders.running or (where is None and status[call] != WAITING):
            return False
        rank = cluster.front.home.get(call, -1)
        if where is not None:
            scheduler = where.pool[where.home[call]]
            abort(scheduler, call)
            where.leave(call, time)
            cluster.touch(cluster.engine_of[scheduler])
        elif call in cluster.waiting:  # it has found no replica; else its cache is on its way to who decodes
            cluster.waiting.remove(call)
        cluster.count(call, time, True)
        self.senders.running.pop(call)
        for process in cluster.processes:
            process.ended(call, time, rank)
        return True

    def _where(self, call: int) -> Router | None:
        """The pool that has a call."""
        return next((pool for pool in (self.cluster.front, self.cluster.back) if call in pool.home), None)
