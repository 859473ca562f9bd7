"""What prompts share: as it is asked for, or as their workload has it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from inferplan.errors import UsageError
from inferplan.fields import option_values
from inferplan.traffic.requests import SharedPrefix

if TYPE_CHECKING:
    from inferplan.catalog.workloads import WorkloadSpec

TEXT_NAMES = ("shared_prefix", "distinct_prefixes", "turns", "think_time")


def shared_text(values: dict[str, Any], named: WorkloadSpec | None) -> SharedPrefix:
    """What prompts share: that of the workload, of which options replace a part each. Raises ``UsageError``."""
    prefix = replace(named.shared_prefix() if named else SharedPrefix(), **option_values(SharedPrefix, values))
    if values["distinct_prefixes"] and not prefix.tokens:
        raise UsageError("--distinct-prefixes is of texts that prompts begin with", hint="--shared-prefix 1000")
    return prefix
