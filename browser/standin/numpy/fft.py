"""The Fourier transform of real numbers, and back."""

from __future__ import annotations

from cmath import exp, pi

from .arrays import COMPLEX, FLOAT, asarray, ndarray


def _transform(values, sign):
    count = len(values)
    if count % 2 or count < 4:
        return [
            sum(value * exp(sign * 2j * pi * (at * place % count) / count) for place, value in enumerate(values))
            for at in range(count)
        ]
    even, odd = _transform(values[::2], sign), _transform(values[1::2], sign)
    turned = [exp(sign * 2j * pi * at / count) * value for at, value in enumerate(odd)]
    return [one + other for one, other in zip(even, turned)] + [one - other for one, other in zip(even, turned)]


def rfft(given, n=None):
    values = list(asarray(given, float).data)
    count = n or len(values)
    values = (values + [0.0] * count)[:count]
    made = _transform(values, -1)[: count // 2 + 1]
    return ndarray(made, (len(made),), COMPLEX)


def irfft(given, n=None):
    half = list(asarray(given).data)
    count = n or 2 * (len(half) - 1)
    whole = [half[at] if at <= count // 2 else half[count - at].conjugate() for at in range(count)]
    made = [value.real / count for value in _transform(whole, 1)]
    return ndarray(made, (len(made),), FLOAT)
