"""``python -m tests.benchmarks.compare_releases DIR``: kernels of an engine release, with its rows and without them.

For every release, device, kernel and format that was timed inside graphs: the median error, on a fifth of its shapes,
of constants from its other rows (own), from the rows of the nearest release (left out) and of the constants on file
(newest); at shapes in common, how far the times of the nearest release are from its own (times).
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from calibrate.fit import Measurement, split, stack, stack_errors
from inferplan.catalog.calibrations import release_dates
from inferplan.catalog.files import config_root, load_hardware, read_yaml, validate
from inferplan.devices.constants import ANY, Calibration, Fit
from inferplan.devices.releases import role_of
from tools.fitting.tables.calibrations import VECTOR, rest_calibration
from tools.fitting.tables.releases import (
    SHARED,
    Context,
    Timed,
    changed,
    difference,
    off_the_fast_path,
    read_releases,
    usable,
)


class Compared(NamedTuple):
    """Median errors of one kernel of one release, as fractions; ``times`` where shapes are in common."""

    role: str
    own: float
    left_out: float
    newest: float
    times: float | None


def error(rows: list[Measurement], fit: Fit, given: Context) -> float:
    """Median absolute error of constants on rows."""
    return stack_errors(stack(rows, given.hardware, tuple(fit.terms), given.rest), fit)["median"]


def compared(timed: Timed, gpu: str) -> Iterator[Compared]:
    """Every release of every kernel of a device that several releases were timed with."""
    file = config_root() / "calibration" / f"{gpu}.yaml"
    constants = validate(file, read_yaml(file), Calibration)
    given = Context(load_hardware(gpu), rest_calibration(constants.constants[VECTOR[0]][ANY]))
    groups: dict[tuple[str, tuple[str, str]], dict[str, list[Measurement]]] = defaultdict(dict)
    for key, all_rows in timed.items():
        rows = usable(all_rows, given.hardware) if key.gpu == gpu else []
        if len(rows) > len(groups[key.engine, key.group].get(key.version, ())):
            groups[key.engine, key.group][key.version] = rows
    for (engine, (kernel, label)), releases in groups.items():
        on_file = constants.libraries.get(engine, {}).get(kernel, {}).get(label)
        slow = off_the_fast_path(releases)
        kept = {name: rows for name, rows in releases.items() if name not in slow}
        if on_file is None or len(kept) < 2:
            continue
        for name, rows in kept.items():
            nearest = min((other for other in kept if other != name), key=lambda one: _days(engine, name, one))
            train, test = split(rows)
            fits = [changed(on_file, _stacked(part, on_file, given)) for part in (train, kept[nearest])]
            ratio = difference(rows, kept[nearest])
            yield Compared(
                role_of(kernel),
                *(error(test, fit, given) for fit in (*fits, on_file)),
                times=float(np.expm1(ratio[1])) if ratio[2] >= SHARED else None,
            )


def _stacked(rows: list[Measurement], fit: Fit, given: Context):  # type: ignore[no-untyped-def]
    return stack(rows, given.hardware, tuple(fit.terms), given.rest)


def _days(engine: str, one: str, other: str) -> int:
    days = [release_dates()[engine].day(name) or 0 for name in (one, other)]
    return abs(days[0] - days[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    timed, _ = read_releases(parser.parse_args().folder)
    devices = sorted({key.gpu for key in timed if (config_root() / "calibration" / f"{key.gpu}.yaml").is_file()})
    found = [one for gpu in devices for one in compared(timed, gpu)]
    print("| kernels | releases | own | left out | newest | times at equal shapes |")
    print("| --- | --- | --- | --- | --- | --- |")
    for role in [*sorted({one.role for one in found}), None]:
        part = [one for one in found if role in (one.role, None)]
        times = [one.times for one in part if one.times is not None]
        figures = [np.median([one[i] for one in part]) for i in (1, 2, 3)] + [np.median(times) if times else np.nan]
        print(f"| {role or 'all'} | {len(part)} | " + " | ".join(f"{100 * value:.1f}" for value in figures) + " |")


if __name__ == "__main__":
    main()
