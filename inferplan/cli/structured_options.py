"""What is said of structured decoding beside its options: the report of a static batch, what it does not go with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferplan.errors import UsageError

if TYPE_CHECKING:
    from inferplan.estimate.batch import Estimate
    from inferplan.estimate.structured import Structured
    from inferplan.table import Report


def structured_report(result: Estimate, structured: Structured | None, compiling: float | None) -> Report:
    """The report of a static batch of which a share is structured. compiling: seconds of a grammar's first use.

    Raises ``UsageError`` for a grammar of nobody.
    """
    if structured is None:
        raise UsageError(
            "--grammar-compile is of structured decoding, and no request is structured",
            hint="--structured-share 0.3 --mask-time 40us --host-cores 32 as well, or leave it out",
        )
    from inferplan.estimate.structured import StructuredEstimate
    from inferplan.reports.structured import masked_report

    found = StructuredEstimate(deployment=result.deployment, load=result.load, structured=structured)
    return masked_report(found, compiling)
