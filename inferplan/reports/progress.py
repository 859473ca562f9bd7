"""How far something is: a bar on a terminal or in a notebook, and nothing where nobody looks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from importlib import import_module
from time import monotonic
from typing import Any, Protocol

_PAUSE = 0.1
"""Seconds between two pictures of a bar."""


class Bar(Protocol):
    """What is told how many are done, and of how many where that was not known before."""

    def __call__(self, done: int, total: int | None = None, /) -> None: ...


@contextmanager
def ended(show: Callable[[int, int | None], None], total: int | None) -> Iterator[Bar]:
    """A bar of ``show``, which reaches its end when the work does: also where less was to be done than was thought."""
    last: tuple[int, int | None] = (0, total)

    def told(done: int, of: int | None = None, /) -> None:
        nonlocal last
        last = (done, total if of is None else of)
        show(*last)

    yield told
    end = last[0] if last[1] is None else last[1]
    if end and last != (end, end):
        show(end, end)


@contextmanager
def progress_counter(what: str, total: int | None = None, wanted: bool = True) -> Iterator[Bar | None]:
    """What is to be called with how many ``what`` are done; ``None`` where nothing is shown.

    total: how many there are, where that is known; else the calls say how many are known. wanted: ``False`` shows
    nothing at all.
    """
    if not wanted:
        yield None
        return
    display = _display()
    if display is not None:
        yield from _in_notebook(display, what, total)
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=total)
            with ended(lambda done, of: bar.update(task, completed=done, total=of), total) as told:
                yield told
    else:
        yield None


def _display() -> Any:
    """What a notebook shows things with; ``None`` outside one. Whoever runs in a notebook has loaded IPython."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    return import_module("IPython.display").display


class _Markup:
    """HTML for a notebook, and the same as text."""

    def __init__(self, html: str, text: str) -> None:
        self._html, self._text = html, text

    def _repr_html_(self) -> str:
        return self._html

    def __repr__(self) -> str:
        return self._text


def _in_notebook(display: Any, what: str, total: int | None) -> Iterator[Bar]:
    handle = display(_bar(what, total, 0), display_id=True)
    last = monotonic()

    def show(done: int, of: int | None) -> None:
        nonlocal last
        if monotonic() - last > _PAUSE:  # a message to the browser each time
            last = monotonic()
            handle.update(_bar(what, of, done))

    try:
        with ended(show, total) as told:
            yield told
    finally:
        handle.update(_Markup("", ""))


def _bar(what: str, total: int | None, done: int) -> _Markup:
    """The bar of a browser, and how many are done; one without an end where that is not known."""
    text = f"{done:,} {what}" if total is None else f"{done:,} of {total:,} {what}"
    value = "" if total is None else f' max="{max(total, 1)}" value="{done}"'
    return _Markup(f"<progress{value}></progress> {escape(text)}", text)
