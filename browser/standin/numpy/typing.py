"""Names of types, for annotations alone."""

from __future__ import annotations

from typing import Any

from .arrays import ndarray

NDArray = ndarray
ArrayLike = DTypeLike = Any
