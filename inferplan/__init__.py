"""inferplan: how large language models run on real hardware, before anyone buys or rents it."""

from __future__ import annotations

__version__ = "0.1.0"
