"""Through a proxy: the first token within 2 % of when the server wrote it, or the row is marked."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from inferplan.measuring.address import address_of
from inferplan.measuring.figures import load_figures
from inferplan.measuring.loads import LoadChoice
from inferplan.measuring.session import Session
from tests.measuring.proxies import LOCATIONS, NGINX, Proxy, nginx
from tests.measuring.stand_in import StandIn
from tests.measuring.test_stand_in import run
from tests.measuring.wire import served

CHOICE = LoadChoice(lengths=(64,), concurrency=(), output=16, single_requests=3)
MARK = "pieces come at once: a proxy or the engine holds them back"


def off(session: Session, server: StandIn) -> float:
    """The median TTFT beside the server's own notes of the same requests, as a share; of one load, the last."""
    (one,) = session.loads
    assert len(one.good) == 3
    return median(reply.ttft for reply in one.good) / median(seen.ttft for seen in server.seen[-3:]) - 1


def require_right_or_marked(url: str, server: StandIn, held: bool) -> None:
    """Measured again where the machine was at other work: no proxy is that late."""
    for _ in range(4):
        session = run(server, address=address_of(url), choice=CHOICE)
        (one,) = session.loads
        if held or (abs(off(session, server)) < 0.02 and not one.suspect):
            break
    assert any(MARK in why for why in one.suspect) == held, one.suspect
    assert (abs(off(session, server)) < 0.02) != held
    found = load_figures(one)
    assert found is not None and bool(found.latencies["itl"]) != held


@pytest.mark.slow
@pytest.mark.parametrize("holds", [0, 512, 4096])
def test_a_proxy_that_gathers_replies(holds: int) -> None:
    """A reply of 16 events of 65 bytes leaves in three parts, or as a whole: its first token is 70 or 150 ms late."""
    with served(StandIn()) as server, served(Proxy(server.port, holds)) as proxy:
        require_right_or_marked(proxy.url, server, bool(holds))


@pytest.mark.slow
@pytest.mark.skipif(NGINX is None, reason="needs nginx")
@pytest.mark.parametrize("location", LOCATIONS)
def test_nginx(location: str, tmp_path: Path) -> None:
    """It holds back what a server answers to HTTP/1.0 with ``proxy_buffering on``, its defaults, and nothing else."""
    with served(StandIn()) as server, nginx(server.port, tmp_path) as urls:
        require_right_or_marked(urls[location], server, location == "buffered")
