"""Each bug planted in the calibrator is noticed by its check, and the honest source by none."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")

from tests.calibrate.mutants import CALIBRATE_MUTANTS
from tests.calibrate.mutants_device import DEVICE_MUTANTS
from tests.mutants_source import SourceMutant, failure, planted_in_source

MUTANTS = CALIBRATE_MUTANTS + DEVICE_MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_of_the_calibrator_is_caught(mutant: SourceMutant) -> None:
    assert failure(mutant.check) == "", "the check fails on the honest source"
    with planted_in_source(mutant):
        assert failure(mutant.check), f"nothing notices that {mutant.changes}"
    assert failure(mutant.check) == "", "planting left something behind"


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
