"""What becomes of a shape that cannot be measured: noted with its cause and passed over, or the end of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from calibrate.device.measurer import Measurer
from calibrate.kernels.choice import first_line
from calibrate.session.raw_file import DEVICE, MEMORY, SHAPE, RawFile
from inferplan.errors import InferplanError, MissingFactError

T = TypeVar("T")
TRIES = 2
"""How often a shape is tried that found no memory (in one run), or with which the device was lost (over all runs)."""


class DeviceLostError(InferplanError):
    """The device answers no call any more until the process ends (exit 2, as for a device that is not there)."""


class Attempts:
    """Tries one thing at a time on a device; what fails goes into the raw file, with the cause that says what next.

    ``shape``: a kernel does not take these sizes; never tried again. ``memory``: there was too little; tried once more
    in the same run, and anew in the next. ``device``: the device was lost meanwhile, perhaps through an earlier call;
    tried once more in the next run, after everything else.
    """

    def __init__(self, measurer: Measurer, raw: RawFile) -> None:
        self.measurer, self.raw = measurer, raw
        self._short: Counter[str] = Counter()

    def passed_over(self, key: str) -> bool:
        """Whether it has failed too often to be tried now."""
        causes = self.raw.session.causes[key]
        return causes[SHAPE] > 0 or causes[DEVICE] >= TRIES or self._short[key] >= TRIES

    def lost_before(self, key: str) -> bool:
        """Whether the device was lost with it in an earlier run."""
        return self.raw.session.causes[key][DEVICE] > 0

    def attempt(self, key: Callable[[], str], doing: str, call: Callable[[], T]) -> T | None:
        """The result of ``call``; ``None`` when it failed, which is noted under ``key()``.

        Raises ``DeviceLostError`` when the device answers no more.
        """
        try:
            return call()
        except MemoryError as error:
            self._note(key(), MEMORY, f"out of memory: {error}")
            self._short[key()] += 1
        except MissingFactError as error:
            self._note(key(), SHAPE, error.what)
        except InferplanError:  # a full disk, a device that is lost: no shape's fault
            raise
        except Exception as error:  # optional libraries fail in any way they like (Triton: errors of its own)
            self.require_device(key, doing)
            self._note(key(), SHAPE, first_line(error))
        return None

    def require_device(self, key: Callable[[], str], doing: str) -> None:
        """Wait for the device. Raises ``DeviceLostError`` when it answers no more, and notes what it was lost with."""
        try:
            self.measurer.synchronize()
        except RuntimeError as error:
            self._note(key(), DEVICE, f"the device was lost: {first_line(error)}")
            raise lost(error, doing, self.raw) from error

    def _note(self, key: str, cause: str, why: str) -> None:
        self.raw.add("failed", key=key, why=why, cause=cause)


def lost(error: BaseException, doing: str, raw: RawFile) -> DeviceLostError:
    """The one message that ends a run whose device is lost."""
    samples = sum(map(len, raw.session.samples.values()))
    steps = sum(map(len, raw.session.steps.values()))
    return DeviceLostError(
        f"the device was lost at {doing}: {first_line(error)}",
        because=f"such an error stays until the process ends; {samples} samples and {steps} steps of whole models are "
        f"kept in {raw.path}",
        hint="the same command with --resume, which is a fresh process, goes on from them",
    )
