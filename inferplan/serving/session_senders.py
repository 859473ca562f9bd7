"""Who sends the calls of agents: each follows the last of those that it waits for, after a gap of its own."""

from __future__ import annotations

import numpy as np

from inferplan.serving.records import REJECTED, Records
from inferplan.serving.senders import Senders
from inferplan.traffic.requests import ClosedLoop

Sending = tuple[float, int]
"""When which request is sent; below 0: a place of a closed loop stays empty from then on."""


class SessionSenders(Senders):
    """The calls of sessions that wait for answers. A session is over when none of its calls runs or will be sent."""

    def __init__(self, records: Records, closed: ClosedLoop | None) -> None:
        super().__init__(records, closed)
        sessions, follows = records.sessions, records.follows
        assert sessions is not None
        assert follows is not None
        self.reacts = True
        self.session: list[int] = sessions.of.tolist()
        self.patience: list[float] = sessions.patience.tolist()
        self.waiting: dict[int, list[int]] = {}
        """The calls that wait for each."""
        self.missing = [0] * len(follows)
        """Answers that each call still waits for."""
        self.ready = [0.0] * len(self.session)
        """When the last answer came that each waits for."""
        self.earliest = None if sessions.earliest is None else sessions.earliest.tolist()
        self.begun = [0.0] * len(sessions)
        """When the first call of each session was sent."""
        self.alive = [0] * len(sessions)
        """Calls of each session that run, or will be sent at a time that is known."""
        self.running: dict[int, None] = {}
        """Calls that were sent and not answered."""
        self.ended: dict[int, float] = {}
        """When each session that is over was."""
        self.bounds = np.searchsorted(sessions.of, np.arange(len(sessions) + 1)).tolist()
        """The calls of session ``s`` are those from ``bounds[s]`` to ``bounds[s + 1]``."""

        for call, before in enumerate(follows):
            if before >= 0:
                self._wait(call, before)
        for call, before in sessions.joins.tolist():
            self._wait(call, before)

    def _wait(self, call: int, before: int) -> None:
        self.waiting.setdefault(before, []).append(call)
        self.missing[call] += 1

    def after(self, request: int, time: float) -> float:
        """An answer is seen when it is there; what follows has gaps of its own."""
        return time

    def calls(self, session: int) -> range:
        """All calls of a session."""
        return range(self.bounds[session], self.bounds[session + 1])

    def sends(self, call: int, time: float) -> bool:
        """Whether a call is still to be sent, now that its ``time`` has come; its session may have been given up."""
        session = self.session[call]
        if session in self.records.left:
            return False
        if self.missing[call] == 0 and not self.alive[session]:  # its first
            self.alive[session], self.begun[session] = 1, time
        self.running[call] = None
        return True

    def answered(self, call: int, time: float) -> list[Sending]:
        """What an answer at ``time`` brings: calls of the same session, or, where that is over, another session."""
        self.running.pop(call, None)
        session = self.session[call]
        if session in self.records.left:
            return []
        sending = []
        if self.records.status[call] != REJECTED:  # nothing follows what was refused
            for after in self.waiting.get(call, ()):
                self.missing[after] -= 1
                self.ready[after] = max(self.ready[after], time)
                if not self.missing[after]:
                    sending.append((self._due(after), after))
        self.alive[session] += len(sending) - 1
        if self.alive[session]:
            return sending
        self.ended[session] = time
        return self.another(time)

    def _due(self, call: int) -> float:
        """When a call is sent that waits for no answer any more."""
        due = self.ready[call] + self.think(call)
        return due if self.earliest is None else max(due, self.begun[self.session[call]] + self.earliest[call])

    def another(self, time: float) -> list[Sending]:
        """In a closed loop the session that begins as another ends."""
        if self.closed is None:
            return []
        return [(time, next(self.beginning, -1))]
