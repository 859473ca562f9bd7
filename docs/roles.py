"""A hook of the documentation site: docstrings name things as ``:class:`Deployment```; pages show the name alone."""

from __future__ import annotations

import re
from typing import Any

ROLE = re.compile(r":(?:attr|class|data|func|meth|mod|term):(?=<code>)")


def on_page_content(html: str, **_: Any) -> str:
    """Called by mkdocs for each page once it is HTML."""
    return ROLE.sub("", html)
