"""Whole numbers of a long log: a sequence that takes the memory of its array, and is never written to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt


class Many(Sequence[int]):
    """As a tuple of them."""

    def __init__(self, array: npt.NDArray[np.int64]) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[int, ...]: ...
    def __getitem__(self, place: int | slice) -> int | tuple[int, ...]:
        return tuple(self.array[place].tolist()) if isinstance(place, slice) else int(self.array[place])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.array, dtype=dtype) if copy else np.asarray(self.array, dtype=dtype)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Many) and (self.array is other.array or np.array_equal(self.array, other.array))

    def __hash__(self) -> int:
        return hash((len(self), int(self.array[0]), int(self.array[-1])))

    def __deepcopy__(self, _: object) -> Many:
        return self
