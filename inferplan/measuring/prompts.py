"""Prompts of random words, as long in tokens as they are meant to be, and no two alike."""

from __future__ import annotations

import secrets
from random import Random

import numpy as np

_LIST = """
able about above across action after again age agree air all almost alone along always among animal answer any
apple area arm around art ask away baby back ball bank base bear beat beauty bed before begin behind believe
below best better between big bird black blood blue board boat body bone book born both bottom box boy bread
break bring brother build burn business but buy call camp capital care carry case cat catch cause cell center
certain chair chance change check child choose church circle city claim class clean clear climb clock close
cloud coat cold color come common complete cook cool copy corn correct cost cotton could count country course
cover cow create cross crowd cry current cut dance danger dark day dead deal dear death decide deep degree
design desert develop differ dinner direct discuss distance divide doctor dog dollar door double down draw dream
dress drink drive drop dry during each early earth east easy eat edge effect egg eight either electric element
else end enemy energy engine enough enter equal even evening event ever every exact example except excite
exercise expect experience eye face fact fair fall family famous far farm fast fat father favor fear feed feel
few field fight figure fill final find fine finger finish fire first fish fit five flat floor flow flower fly
follow food foot force forest form forward found four fraction free fresh friend from front fruit full fun game
garden gas gather general gentle
"""
WORDS = tuple(_LIST.split())
"""Common words, most of them one token of most vocabularies."""

LEAST, MOST = 0.25, 40.0
"""Tokens of a word at the least and at the most, whatever a server says; letters or bytes as tokens are within."""


class Prompts:
    """Random words from a source that nobody can repeat: a second run must not find the first one's prompts cached.

    The first sixteen words alone, a page of a KV cache at the least, are one of 10^38 beginnings.
    """

    def __init__(self) -> None:
        self._random = Random(secrets.randbits(128))

    def text(self, words: int) -> str:
        """So many words (at least one)."""
        return " ".join(self._random.choices(WORDS, k=max(words, 1)))


class PromptSizing:
    """Tokens of a prompt by its words, ``tokens = fixed + each * words``, by least squares over prompts that a server
    or a tokenizer has counted. ``fixed``: what a template adds."""

    def __init__(self) -> None:
        self._seen: list[tuple[int, int]] = []

    def learn(self, words: int, tokens: int) -> None:
        """A prompt of so many words had so many tokens."""
        self._seen.append((words, tokens))

    def words(self, tokens: int) -> int:
        """Words of a prompt of about so many tokens; one token a word while nothing is known."""
        fixed, each = self._line()
        words = (tokens - fixed) / min(max(each, LEAST), MOST)
        return min(max(round(words), 1), round(tokens / LEAST))

    @property
    def each(self) -> float:
        """Tokens of a word, as counted."""
        return self._line()[1]

    def _line(self) -> tuple[float, float]:
        seen = np.array(self._seen, dtype=float).reshape(-1, 2)
        words, tokens = seen.T
        if len(np.unique(words)) < 2:
            return 0.0, float(np.sum(tokens) / np.sum(words)) if len(words) else 1.0
        each, fixed = np.polyfit(words, tokens, 1)
        return float(fixed), float(each)
