"""A stand-in for numpy in plain Python, for the browser: what estimates, fits, comparisons and simulations use of it.

There is no build of numpy for Pyodide on the package indexes. Results are numpy's to the last printed digit
(tests/browser); what this does not know raises, and no answer is given.
"""

from __future__ import annotations

from math import e, inf, nan, pi  # noqa: F401

from . import fft, linalg, random, typing  # noqa: F401
from .arrays import *  # noqa: F403
from .arrays import absolute, divmod_, nonzero  # noqa: F401
from .functions import *  # noqa: F403
from .functions import all_, any_, max_, min_, round_, sum_

abs, divmod, round, newaxis = absolute, divmod_, round_, None
sum, max, min, any, all = sum_, max_, min_, any_, all_
around = round
__version__ = "2.0+browser"


class errstate:
    """Nothing is said of what is no number."""

    def __init__(self, **_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotImplementedError(f"numpy.{name} is not in the browser's stand-in for numpy")
