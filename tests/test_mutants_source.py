"""Each bug planted in the source is noticed by its check, and the honest source by none."""

from __future__ import annotations

import pytest

from tests.mutants_anchors import ANCHOR_MUTANTS
from tests.mutants_emit import EMIT_MUTANTS
from tests.mutants_model import MODEL_MUTANTS
from tests.mutants_planning import PLANNING_MUTANTS
from tests.mutants_power import POWER_MUTANTS
from tests.mutants_scale import SCALE_MUTANTS
from tests.mutants_serving import SERVING_MUTANTS
from tests.mutants_sessions import SESSION_MUTANTS
from tests.mutants_source import SourceMutant, StaleMutantError, failure, planted_in_source

MUTANTS = [
    *ANCHOR_MUTANTS,
    *EMIT_MUTANTS,
    *MODEL_MUTANTS,
    *PLANNING_MUTANTS,
    *POWER_MUTANTS,
    *SCALE_MUTANTS,
    *SERVING_MUTANTS,
    *SESSION_MUTANTS,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_in_the_source_is_caught(mutant: SourceMutant) -> None:
    assert failure(mutant.check) == "", "the check fails on the honest source"
    with planted_in_source(mutant):
        assert failure(mutant.check), f"nothing notices that {mutant.changes}"
    assert failure(mutant.check) == "", "planting left something behind"


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_a_mutant_whose_code_has_changed_is_refused() -> None:
    stale = SourceMutant(
        name="stale",
        place="inferplan.answers.cost:HOURS_PER_MONTH",
        old="= 731.0",
        new="= 720.0",
        changes="nothing",
        check=lambda: None,
    )
    with pytest.raises(StaleMutantError), planted_in_source(stale):
        pass
