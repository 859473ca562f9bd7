"""The session of each request, and what belongs to sessions: by request and by session."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from inferplan.traffic.conversations import Floats, Ints

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class Sessions:
    """Which session each request is of, and what belongs to sessions.

    of: by request. joins: pairs of requests ``(n, 2)``; the first also waits for the answer to the second. by_user: by
    request, whether its gap is that of a user (else of a tool). patience: by session, seconds from its first request on
    after which its user gives up; infinite for users who wait. kind: by session, the place of its name in ``names``.
    recipe: how they were drawn; absent for those of a trace. earliest: by request, seconds after the first of its
    session before which it is not sent; absent for none. note: what a reader of a trace concluded.
    """

    of: Ints
    joins: Ints
    by_user: Bools
    patience: Floats
    kind: Ints
    names: tuple[str, ...]
    recipe: dict[str, Any] | None = field(default=None, repr=False)
    earliest: Floats | None = None
    note: str = ""

    def __len__(self) -> int:
        return len(self.patience)

    def head(self, count: int) -> Sessions:
        """Those of the first ``count`` requests."""
        joins = self.joins[np.all(self.joins < count, axis=1)]
        earliest = None if self.earliest is None else self.earliest[:count]
        return replace(self, of=self.of[:count], joins=joins, by_user=self.by_user[:count], earliest=earliest)

    def renumbered(self, order: Ints, place: Ints) -> Sessions:
        """The same where request ``order[i]`` is now ``i``; ``place`` is the inverse."""
        earliest = None if self.earliest is None else self.earliest[order]
        joins = place[self.joins]
        return replace(self, of=self.of[order], joins=joins, by_user=self.by_user[order], earliest=earliest)
