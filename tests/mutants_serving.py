from __future__ import annotations

SERVING_MUTANTS = []
