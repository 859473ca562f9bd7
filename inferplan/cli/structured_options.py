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

    Raises ``UsageError`` for a grammar of nobody, and for a model that is no plain decoder.
    """
    if structured is None:
        raise UsageError(
            "--grammar-compile is of structured decoding, and no request is structured",
            hint="--structured-share 0.3 --mask-time 40us --host-cores 32 as well, or leave it out",
        )
    from inferplan.estimate.batch import Estimate
    from inferplan.estimate.structured import MaskedSteps, StructuredEstimate, require_one_engine
    from inferplan.reports.structured import masked_report

    require_one_engine(result.deployment)
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
