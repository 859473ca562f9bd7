"""What a request may ask for at most: every bound of the server in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Sizes in bytes, times in seconds. docs/web.md lists them."""

    body: int = 64 * 1024
    """Of a request."""
    body_seconds: float = 10.0
    """In which a request must have been sent."""
    depth: int = 8
    """Of nesting in a body."""
    items: int = 2000
    """Keys and elements of a body."""
    text: int = 2000
    """Characters of one text."""
    points: int = 2000
    """Of a curve."""
    views: int = 4
    """Side by side in a comparison."""
    seconds: float = 10.0
    """Of one answer, from when its turn has come."""
    start_seconds: float = 60.0
    """In which a process starts, and reads the whole catalogue."""
    waiting: int = 64
    """Requests that wait for their turn; more are refused."""
    waiting_each: int = 16
    """Of one person, where people have links of their own."""
    pricing: int = 2
    """Processes that price: so many requests are answered at once."""
    jobs: int = 2
    """Jobs of one person at once, but for what the page asks for by itself."""
    jobs_of_all: int = 6
    """The same of all people."""
    job_seconds: float = 900.0
    """Of one of those."""
    kept: int = 16
    """Jobs of a person whose end is remembered."""
    memory: int = 8 * 2**30
    """Of one process."""


LIMITS = Limits()
MOST_SECONDS = 3600
"""What a limit of time may be set to."""
