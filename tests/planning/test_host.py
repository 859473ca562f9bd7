"""A plan on a host of one's own: it is sized with its seconds, and its file says them."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from inferplan.catalog.host_times import HostTimes
from inferplan.cli import cli
from inferplan.errors import SpecError
from inferplan.reports.plan_file import planned_of

PLAN = (
    "plan llama-3.1-8b --gpu h100-sxm --quant bf16 --rate 5 --prompt 600 --output 64 --ttft 500ms --tpot 40ms "
    "--aggregated --confidence 0.5 --format json"
)


def test_a_plan_is_sized_on_the_host_and_says_it() -> None:
    """A client that takes 300 ms more for each request leaves that much less of the first token's limit."""
    usual, slow = (
        json.loads(CliRunner().invoke(cli, [*PLAN.split(), *more], catch_exceptions=False).stdout)
        for more in ((), ("--host-request", "318.9ms", "--host-step", "611us"))
    )
    times = [record["plan"]["ttft_s"] for record in (usual, slow)]
    assert times[1] - times[0] == pytest.approx(0.3, abs=0.03)  # of another batch, perhaps
    assert planned_of(slow, "plan.json").request.host == HostTimes(request=pytest.approx(0.3189), step=611e-6)
    slow["plan"]["deployment"]["options"]["host.request"] = "fast"
    with pytest.raises(SpecError, match=r"host\.request"):
        planned_of(slow, "plan.json")
