"""Mean and mean square of ``min(X, m)``: what a distribution keeps where longer draws are cut to ``m``; how many are.

For each family E[X^k; X < m] is E[X^k] times a distribution function of the same family, with other parameters: a
lognormal's z moves by k sigma, a gamma's shape by k; a normal's follows by parts.
"""

from __future__ import annotations

from math import erf, exp, lgamma, log, log1p, pi, sqrt


def normal_moments(mean: float, deviation: float, most: float) -> tuple[float, float]:
    """Of a normal distribution."""
    z = (most - mean) / deviation
    below, density = _normal(z), exp(-z * z / 2) / sqrt(2 * pi)
    first = mean * below - deviation * density
    second = (mean**2 + deviation**2) * below - deviation * (mean + most) * density
    return first + most * (1 - below), second + most**2 * (1 - below)


def lognormal_moments(mean: float, spread: float, most: float) -> tuple[float, float]:
    """Of a lognormal distribution of standard deviation ``spread*mean``."""
    sigma = sqrt(log1p(spread**2))
    z = (log(most / mean) + sigma**2 / 2) / sigma
    above = 1 - _normal(z)
    first = mean * _normal(z - sigma)
    second = mean**2 * (1 + spread**2) * _normal(z - 2 * sigma)
    return first + most * above, second + most**2 * above


def gamma_moments(mean: float, spread: float, most: float) -> tuple[float, float]:
    """Of a gamma distribution of standard deviation ``spread*mean``."""
    shape, scale = 1 / spread**2, mean * spread**2
    x = most / scale
    above = 1 - _gamma(shape, x)
    first = mean * _gamma(shape + 1, x)
    second = mean**2 * (1 + spread**2) * _gamma(shape + 2, x)
    return first + most * above, second + most**2 * above


def normal_above(mean: float, deviation: float, most: float) -> float:
    """The share of a normal distribution above ``most``."""
    return 1 - _normal((most - mean) / deviation)


def lognormal_above(mean: float, spread: float, most: float) -> float:
    """The share of a lognormal distribution above ``most``."""
    sigma = sqrt(log1p(spread**2))
    return 1 - _normal((log(most / mean) + sigma**2 / 2) / sigma)


def gamma_above(mean: float, spread: float, most: float) -> float:
    """The share of a gamma distribution above ``most``."""
    return 1 - _gamma(1 / spread**2, most / (mean * spread**2))


def _normal(z: float) -> float:
    """The standard normal distribution function."""
    return (1 + erf(z / sqrt(2))) / 2


def _gamma(shape: float, x: float) -> float:
    """The regularised lower incomplete gamma function, by its series (Abramowitz and Stegun 6.5.29)."""
    term = total = exp(shape * log(x) - x - lgamma(shape + 1))
    if not term:  # so far in a tail that a float cannot tell
        return 1.0 if x > shape else 0.0
    order = shape
    while term > 1e-17 * total:
        order += 1
        term *= x / order
        total += term
    return min(total, 1.0)
