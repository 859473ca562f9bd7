"""Runs docs/tutorial.ipynb as a notebook would, and writes its outputs and the page docs/notebook.md.

``python docs/generate_notebook.py``; tests/test_notebook.py runs the same cells and compares.
"""

from __future__ import annotations

import ast
import base64
import io
import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
NOTEBOOK, PAGE, IMAGES = DOCS / "tutorial.ipynb", DOCS / "notebook.md", DOCS / "images"
Cell = dict[str, Any]
HEAD = "<!-- docs/generate_notebook.py writes this page: change docs/tutorial.ipynb instead. -->\n\n"


def read() -> dict[str, Any]:
    """The notebook as it is on file."""
    notebook: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return notebook


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs of its cells, which share their names, top to bottom."""
    names: dict[str, Any] = {}
    cells, count = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            outputs = list(_outputs("".join(cell["source"]), names, count))
            cells.append({**cell, "execution_count": count, "outputs": outputs})
        else:
            cells.append(cell)
    return {**notebook, "cells": cells}


def _outputs(source: str, names: dict[str, Any], count: int) -> Iterator[Cell]:
    """What a cell prints, then what its last expression is."""
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "tutorial", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "tutorial", "eval"), names)
    if printed.getvalue():
        yield {"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(keepends=True)}
    if value is not None:
        yield {"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": _data(value)}


def _data(value: Any) -> dict[str, Any]:
    """A value in the forms that a notebook asks for."""
    data: dict[str, Any] = {"text/plain": [repr(value)]}
    html = value._repr_html_() if hasattr(value, "_repr_html_") else None
    if html is not None:
        data["text/html"] = html.splitlines(keepends=True)
    if hasattr(value, "_repr_png_"):
        data["image/png"] = base64.b64encode(value._repr_png_()).decode()
    return data


def page(notebook: dict[str, Any]) -> tuple[str, dict[str, bytes]]:
    """The page, and its pictures by the names of their files."""
    parts, pictures = [], {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {"text/plain": output.get("text", [])})
            if "image/png" in data:
                name = f"notebook-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode(data["image/png"])
                parts.append(f"![{source.splitlines()[-1].replace('[', '').replace(']', '')}](images/{name})")
            elif "text/html" in data:
                parts.append("".join(data["text/html"]))
            else:
                parts.append(f"```text\n{''.join(data['text/plain']).rstrip()}\n```")
    return HEAD + "\n\n".join(parts) + "\n", pictures


def main() -> None:
    notebook = executed(read())
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    text, pictures = page(notebook)
    PAGE.write_text(text, encoding="utf-8")
    for name, data in pictures.items():
        (IMAGES / name).write_bytes(data)


if __name__ == "__main__":
    main()
