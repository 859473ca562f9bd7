"""What masks of structured decoding take by library (``configs/masks.yaml``)."""

from __future__ import annotations

from functools import cache

from inferplan.catalog.files import config_root, spec_of
from inferplan.devices.engine import Engine, MaskTimes
from inferplan.spec import Spec


class _OnFile(Spec):
    """The file: one source, and each library's times."""

    source: str
    libraries: dict[str, MaskTimes]


@cache
def mask_libraries() -> dict[str, MaskTimes]:
    """Each library on file with the times of its masks."""
    return dict(spec_of(config_root() / "masks.yaml", _OnFile).libraries)


def with_mask_times(engine: Engine) -> Engine:
    """The engine with the times of the libraries that it fills masks with, where it is known how it fills them."""
    if engine.masks is None:
        return engine
    times = {name: each for name, each in mask_libraries().items() if name in engine.masks.libraries}
    return engine.model_copy(update={"masks": engine.masks.model_copy(update={"times": times})})
