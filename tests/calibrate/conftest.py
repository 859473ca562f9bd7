"""What a run does besides what most tests of it are of: each takes longer than the rest of the run on a stand-in."""

from __future__ import annotations

import pytest

BLANK = {"webpage": "", "png": b"", "whole_figure": None}


def draw_nothing(patch: pytest.MonkeyPatch) -> None:
    """Reports without figures: ``test_files_and_report_of_a_run`` looks at those."""
    for name, drawn in BLANK.items():
        patch.setattr(f"calibrate.cli.{name}", lambda *_, drawn=drawn: drawn)


def fit_main_constants(patch: pytest.MonkeyPatch) -> None:
    """Fits that do not try further terms over folds: the fit of an ordinary run in ``test_run`` does."""
    patch.setattr("calibrate.session.fitting.terms_for", lambda *_: ())


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    draw_nothing(monkeypatch)


@pytest.fixture
def main_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    fit_main_constants(monkeypatch)
