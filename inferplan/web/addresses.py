"""By which addresses other machines reach this one."""

from __future__ import annotations

import socket
from contextlib import suppress

_ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses of nobody, kept for documentation (RFC 5737, RFC 3849)."""


def own_addresses() -> list[str]:
    """The addresses from which this machine would send to others, as they stand in a URL; none without a route.

    A UDP socket that is connected knows its own address, and no packet is sent.
    """
    found = []
    for family, elsewhere in _ELSEWHERE.items():
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as asked:
            asked.connect((elsewhere, 9))
            own = asked.getsockname()[0]
            found.append(f"[{own}]" if family is socket.AF_INET6 else own)
    return found
