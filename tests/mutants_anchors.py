"""Bugs planted in anchors, each with the test that must notice."""

from __future__ import annotations

import tempfile
from pathlib import Path

from inferplan.devices.anchors import AnchorRow
from tests.mutants_source import SourceMutant
from tests.properties import test_anchor_laws as laws
from tests.validate import test_anchor


def _next_of_three() -> None:
    rows = [AnchorRow(users=users, prompt=1024, output=1024) for users in (1, 16, 256)]
    laws.test_the_next_run_is_the_best_of_all.hypothesis.inner_test(rows, [])  # type: ignore[attr-defined]


def _in_a_folder(test: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        test(Path(folder))  # type: ignore[operator]


ANCHOR_MUTANTS = [
    SourceMutant(
        name="runs without noise",
        place="inferplan.devices.anchors:Kernel.posterior",
        old="self.noise**2 * np.eye(len(rows))",
        new="1e-9 * np.eye(len(rows))",
        changes="a run is taken to repeat exactly",
        check=laws.test_two_rows_by_hand,
    ),
    SourceMutant(
        name="a wider covariance",
        place="inferplan.devices.anchors:Kernel.covariance",
        old="np.exp(-square / 2)",
        new="np.exp(-square)",
        changes="near loads have less in common",
        check=laws.test_two_rows_by_hand,
    ),
    SourceMutant(
        name="runs that raise the variance",
        place="inferplan.devices.anchors:Kernel.posterior",
        old="self.prior - np.sum",
        new="self.prior + np.sum",
        changes="more is unknown where something was measured",
        check=laws.test_one_row_by_hand,
    ),
    SourceMutant(
        name="natural logarithms of degrees",
        place="inferplan.devices.anchors:Process.points",
        old="np.log2(d)",
        new="np.log(d)",
        changes="divisions are nearer to each other",
        check=laws.test_coordinates_by_hand,
    ),
    SourceMutant(
        name="the band without noise",
        place="inferplan.devices.anchors:Kernel.factors",
        old="variance + self.noise**2",
        new="variance",
        changes="the band of a measurement is that of its mean",
        check=laws.test_two_rows_by_hand,
    ),
    SourceMutant(
        name="the least telling run first",
        place="inferplan.devices.anchors:next_runs",
        old="np.argmax(gain)",
        new="np.argmin(gain)",
        changes="suggest names what says least",
        check=_next_of_three,
    ),
    SourceMutant(
        name="predicted over measured",
        place="inferplan.validation.anchor:_row",
        old="-log(1.0 + error)",
        new="log(1.0 + error)",
        changes="an anchor doubles the error",
        check=test_anchor.test_rows_become_ratios_of_their_loads,
    ),
    SourceMutant(
        name="a token too many in Little's law",
        place="inferplan.validation.anchor:load_of",
        old="(output - 1.0)",
        new="output",
        changes="an open loop holds more users",
        check=test_anchor.test_users_of_an_open_loop_are_those_of_little,
    ),
    SourceMutant(
        name="anchors of other constants",
        place="inferplan.estimate.anchoring:anchored",
        old="if fingerprint(deployment) != anchor.priced_with:",
        new="if not fingerprint(deployment):",
        changes="what was measured over one prediction corrects another",
        check=lambda: _in_a_folder(test_anchor.test_another_system_is_refused_by_name),
    ),
    SourceMutant(
        name="anchors of any system",
        place="inferplan.estimate.anchoring:anchored",
        old="if not own.same(anchor.system):",
        new="if not own:",
        changes="runs of one model correct another",
        check=lambda: _in_a_folder(test_anchor.test_another_system_is_refused_by_name),
    ),
]
