"""A cluster under sessions of agents: calls that wait for several others, and sessions that their users give up."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from math import inf

from inferplan.serving.aborts import abort
from inferplan.serving.apart import Event
from inferplan.serving.cluster import END, SENT, Cluster, Fleet
from inferplan.serving.records import CANCELLED, FINISHED, NAN, Records
from inferplan.serving.session_senders import Sending, SessionSenders
from inferplan.traffic.requests import ClosedLoop

_LEAVES, _TOUCHED = SENT + 20, SENT + 21
"""What may happen beside the events of a cluster: the user of a session gives up, who is named by its first call; an
engine (in place of a request) has less to do than it thought."""


class SessionCluster(Cluster):
    """The engines of a run whose requests are calls of sessions."""

    senders: SessionSenders

    def __init__(
        self, fleet: Fleet, records: Records, closed: ClosedLoop | None, progress: Callable[[int], None] | None = None
    ) -> None:
        super().__init__(fleet, records, closed, progress)
        self.senders = SessionSenders(records, closed)

    def notify(self, request: int, time: float, finished: bool) -> None:
        """As in any cluster, but an answer brings calls of the same session, or another session."""
        if not finished:
            super().notify(request, time, finished)
            return
        (self.back if request in self.back.home else self.front).leave(request, time)
        self.count(request, time, finished)
        self._follow(self.senders.answered(request, time))
        if self.running is not None:
            self.running.pause = True

    def _follow(self, sendings: list[Sending]) -> None:
        for when, call in sendings:
            heapq.heappush(self.events, (when, call, SENT if call >= 0 else END))

    def _deliver(self, event: Event) -> int | None:
        time, request, what = event
        if what == _TOUCHED:
            return request
        if what == _LEAVES:
            self._give_up(request, time)
            return None
        if what == SENT:
            if not self.senders.sends(request, time):
                return None
            patience = self.senders.patience[self.senders.session[request]]
            if patience < inf and not self.senders.ready[request] and self._begins(request):
                heapq.heappush(self.events, (time + patience, request, _LEAVES))
        return super()._deliver(event)

    def _begins(self, request: int) -> bool:
        follows = self.records.follows
        return follows is None or follows[request] < 0

    def _give_up(self, first: int, time: float) -> None:
        """A user gives up on the session of the call ``first``: what runs is aborted, nothing more is sent.

        A step is not stopped: an engine drops a call, and frees its cache, when the step in progress ends. What such a
        step has finished by then was for nobody.
        """
        senders, records = self.senders, self.records
        session = senders.session[first]
        if senders.ended.get(session, inf) <= time:
            return
        records.left[session] = time
        for call in senders.calls(session):
            if call in senders.running:
                self._bring_up(self._engine_with(call), time)
            if call in senders.running:
                engine = self._engine_with(call)
                abort(self.front.pool[self.front.home[call]], call)
                self.front.leave(call, time)
                self.count(call, time, True)
                senders.running.pop(call)
                heapq.heappush(self.events, (time, engine, _TOUCHED))
            elif not (records.status[call] == FINISHED and records.finish[call] > time):
                continue
            records.status[call], records.finish[call] = CANCELLED, time
            if not records.first[call] <= time:
                records.first[call] = NAN
        if session not in senders.ended:
            senders.ended[session] = time
            self._follow(senders.another(time))

    def _engine_with(self, call: int) -> int:
        return self.engine_of[self.front.pool[self.front.home[call]]]

    def _bring_up(self, engine: int, time: float) -> None:
        """An engine runs every step that begins before ``time``; it can have nothing to say before that."""
        self.running = self.engines[engine]
        self.running.advance(time)
