"""Serving under load: steady state, simulation, and one file for each technique."""

from inferplan.compiled import use_compiled

use_compiled()
