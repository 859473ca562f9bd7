"""Where a number comes from: its formula, the numbers put in, and the YAML line of each.

The formulas are those that computed the numbers: the model's functions give their terms (:mod:`inferplan.terms`), and
this package says where each input stands.
"""

from inferplan.answers.explain.explainer import Explainer
from inferplan.answers.explain.explanation import ExplainedPart, Explanation, Input

__all__ = ["ExplainedPart", "Explainer", "Explanation", "Input"]
