"""The options of structured decoding, for ``estimate``, ``simulate`` and ``plan``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from inferplan.cli.options import Count, Fraction
from inferplan.cli.technique_options import option_group, quantity
from inferplan.errors import UsageError

if TYPE_CHECKING:
    from inferplan.estimate.batch import Estimate
    from inferplan.estimate.structured import Structured
    from inferplan.table import Report

MASKS: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (
        ("--structured-share",),
        {
            "type": Fraction(),
            "help": "Share of the requests whose answers follow a grammar or JSON schema (docs/structured.md).",
        },
    ),
    (("--mask-time",), {"metavar": "TIME", "help": "CPU time of one mask, of a sequence and step, such as 40us."}),
    (("--host-cores",), {"type": Count(), "help": "CPU cores of the host, which fill masks."}),
    (
        ("--mask-bandwidth",),
        {"metavar": "RATE", "help": "From the host to the device, for masks that are copied [on file]."},
    ),
    (
        ("--mask-overlap/--no-mask-overlap", "mask_overlap"),
        {"default": None, "help": "Whether masks are filled while the device computes [they are]."},
    ),
]
"""The options as data."""
structured_options = option_group(*(click.option(*names, **keywords) for names, keywords in MASKS))
_OTHERS = ("mask_time", "host_cores", "mask_overlap", "mask_bandwidth")


def structured_of(values: Mapping[str, Any]) -> Structured | None:
    """The structured decoding that is asked for; ``None`` without. Raises ``UsageError`` for a part of it."""
    given = [name for name in _OTHERS if values[name] is not None]
    if values["structured_share"] is None:
        if given:
            raise UsageError(
                f"--{given[0].replace('_', '-')} is of structured decoding, and no request is structured",
                hint="--structured-share 0.3 as well, or leave it out",
            )
        return None
    missing = [name for name in _OTHERS[:2] if values[name] is None]
    if missing:
        raise UsageError(
            f"structured decoding needs --{missing[0].replace('_', '-')}",
            because="the time of a mask depends on the grammar, its engine and the CPU, and nobody publishes yours",
            hint="--mask-time 40us --host-cores 32 (docs/structured.md says where such a number is published)",
        )
    from inferplan.estimate.structured import Structured

    return Structured(
        share=values["structured_share"],
        mask_time=quantity(values["mask_time"], "seconds", "--mask-time") or 0.0,
        cores=values["host_cores"],
        overlapped=values["mask_overlap"] is not False,
        bandwidth=quantity(values["mask_bandwidth"], "bytes/s", "--mask-bandwidth"),
    )


def structured_report(result: Estimate, structured: Structured | None, compiling: float | None) -> Report:
    """The report of a static batch of which a share is structured. compiling: seconds of a grammar's first use.

    Raises ``UsageError`` for a grammar of nobody, and for a model that is no plain decoder.
    """
    if structured is None:
        raise UsageError(
            "--grammar-compile is of structured decoding, and no request is structured",
            hint="--structured-share 0.3 --mask-time 40us --host-cores 32 as well, or leave it out",
        )
    from inferplan.estimate.batch import Estimate
    from inferplan.estimate.structured import MaskedSteps, StructuredEstimate
    from inferplan.reports.structured import masked_report

    MaskedSteps(deployment=result.deployment, structured=structured)  # which says for what it is known
    if type(result) is not Estimate or not result.load.kv_cache:
        raise UsageError(
            f"structured decoding of {result.deployment.model.name} as it is asked for is not modelled",
            because="a mask belongs to a step that writes one token of each sequence",
            hint="leave --structured-share out",
        )
    found = StructuredEstimate(deployment=result.deployment, load=result.load, structured=structured)
    return masked_report(found, compiling)


def refuse_with(structured: Structured | None, beside: list[tuple[str, bool]]) -> None:
    """Raise ``UsageError`` for structured decoding beside what it is not modelled with."""
    if structured is not None and (found := [name for name, there in beside if there]):
        raise UsageError(f"--structured-share with {' and '.join(found)} is not modelled", hint="leave one of them out")
