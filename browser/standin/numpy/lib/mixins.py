"""Operators of a class that says what numpy's functions do with it."""

from __future__ import annotations

from ..arrays import _COMPARED, _LOGIC, _OPERATORS, UFUNCS


class NDArrayOperatorsMixin:
    """Every operator is the function of that name, which asks ``__array_ufunc__``."""

    __slots__ = ()

    def __neg__(self):
        return UFUNCS["negative"](self)

    def __abs__(self):
        return UFUNCS["absolute"](self)


def _operator(symbol, name, mirrored):
    setattr(NDArrayOperatorsMixin, f"__{symbol}__", lambda self, other: UFUNCS[name](self, other))  # noqa: PLW0108 - a method
    if mirrored:
        setattr(NDArrayOperatorsMixin, f"__r{symbol}__", lambda self, other: UFUNCS[name](other, self))
        setattr(NDArrayOperatorsMixin, f"__i{symbol}__", lambda self, other: UFUNCS[name](self, other, out=(self,)))


for _symbol, _name in (_OPERATORS | _LOGIC).items():
    _operator(_symbol, _name, mirrored=True)
for _symbol, _name in _COMPARED.items():
    _operator(_symbol, _name, mirrored=False)
