"""How much of a work is done, of as much of it as is known so far."""

from __future__ import annotations

from collections.abc import Callable

Told = Callable[[int, int], None]
"""What hears how many steps are done, and of how many."""


class Steps:
    """The steps of a work. More of them may turn up; who shows them shows the end when the work ends, however many
    were left out. ``told`` hears of each step that is done.
    """

    def __init__(self, told: Told | None = None) -> None:
        self._told, self.done, self.known, self._ahead = told, 0, 0, 0

    def more(self, count: int) -> None:
        """So many more steps are known."""
        self.known += count

    def step(self) -> None:
        """One more is done."""
        self.at(self.done + 1)

    def at(self, done: int) -> None:
        """So many are done."""
        self.done, self.known = done, max(self.known, done)
        if self._told is not None:
            self._told(self.done, self.known)

    def turn(self, left: int) -> Steps:
        """The steps of one turn of a work, after which ``left`` more turns of as many steps are expected."""
        done, known = self.done, self.known - self._ahead

        def told(more: int, of: int) -> None:
            self._ahead = of * left
            self.known = known + of + self._ahead
            self.at(done + more)

        return Steps(told)
