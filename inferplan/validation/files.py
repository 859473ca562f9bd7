"""Files of measurements beside the predictions: rows of benchmarks, or what engines log at their start."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from inferplan.catalog.files import find
from inferplan.errors import InferplanError, InputFileError, UsageError
from inferplan.files import announce
from inferplan.shown import Shown
from inferplan.validation.deploy import require_format
from inferplan.validation.importers import read_file
from inferplan.validation.rows import Unusable, number, share, text_of, whole_number
from inferplan.validation.run import Pricing, price_rows
from inferplan.validation.score import Scored
from inferplan.validation.startup_logs import Line, compare_with_log, is_startup_log, read_startup_log

Bar = Callable[[str, int], AbstractContextManager[Callable[[int], None] | None]]
"""What shows how far something is: of what and how many there are, to what is called with those that are done."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LogFile:
    """A start-up log beside the model's memory."""

    path: str
    described: str
    lines: Sequence[Line]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Validation(Shown):
    """Predicted against measured: rows of benchmark files, or start-up logs."""

    title: str
    scored: Sequence[Scored] = ()
    logs: Sequence[LogFile] = ()

    def require_answers(self) -> None:
        """Raise ``InputFileError`` when no row has a prediction."""
        if self.logs or any(one.prediction is not None for one in self.scored):
            return
        count = len(self.scored)
        raise InputFileError(
            "no row can be priced",
            because=f"{count} of {count} are refused: {self.scored[0].refused}" if self.scored else "there is none",
            hint=self._filling,
        )

    @property
    def _filling(self) -> str:
        """What fills the cells that the first row lacks."""
        empty = self.scored[0].refused if self.scored and "empty" in self.scored[0].refused else ""
        options = " ".join(option for name, option in _FILLED_BY.items() if re.search(rf"\b{name}\b", empty))
        said = f"what the file does not say: {options}" if options else "options such as --gpu fill empty cells"
        return f"{said} (docs/validate.md has the columns)"


_FILLED_BY = {
    "model": "--model llama-3.1-8b",
    "gpu": "--gpu h100-sxm",
    "engine": "--engine vllm",
    "weights": "--quant bf16",
    "tp": "--tp 1",
    "isl": "--isl 1024",
    "osl": "--osl 256",
    "concurrency": "--concurrency 16",
}
"""A fact of a row to the option that states it."""


def facts(named: Mapping[str, str]) -> dict[str, str]:
    """What somebody states of a run, by the names of the options, as the names of rows."""
    found = {"precision" if name == "quant" else name: value for name, value in named.items()}
    if "@" in found.get("engine", ""):
        found["engine"], _, found["engine_version"] = found["engine"].partition("@")
    for name in found:
        _require_readable(name, found)
    return found


_WHOLE = {"concurrency": 1, "requests": 1} | dict.fromkeys(
    ("tp", "pp", "ep", "dp", "max_num_batched_tokens", "max_num_seqs", "max_model_len"), 0
)
_NAMES = {"model": "models", "gpu": "hardware", "engine": "engines"}


def _require_readable(name: str, stated: Mapping[str, str]) -> None:
    """Raise the error of a fact that no row could take, whatever the file says itself: it names the option."""
    text, option = text_of(stated, name), f"--{'quant' if name == 'precision' else name.replace('_', '-')}"
    if text is None:
        return
    try:
        if name in _NAMES:
            find(_NAMES[name], text.lower() if name == "engine" else text)
        elif name in ("precision", "weights", "experts", "kv"):
            require_format(name, text)
        elif name in _WHOLE:
            whole_number(stated, name, _WHOLE[name])
        elif name in ("isl", "osl"):
            number(stated, name, 1.0)
        elif name == "length_ratio_min" or (name == "memory_fraction" and number(stated, name)):
            share(stated, name)
    except Unusable as error:
        raise UsageError(str(error).replace(name, option, 1)) from None
    except InferplanError as error:
        raise type(error)(f"{option}: {error.what}", error.because, error.hint) from None


def validate_files(
    files: Sequence[str], supplied: Mapping[str, str], pricing: Pricing, bar: Bar = lambda what, total: nullcontext()
) -> Validation:
    """Every row of the files with its prediction, or every quantity of the logs. supplied: what they leave out.

    Raises ``UsageError`` for logs among benchmarks, ``InputFileError`` and ``SpecError`` for files that cannot be read.
    """
    logs = [path for path in files if _is_log(Path(path))]
    if logs:
        if len(logs) < len(files):
            raise UsageError("start-up logs and benchmark files do not mix", hint=f"leave out {', '.join(logs)}")
        return Validation(title=", ".join(logs), logs=[_log(path, supplied) for path in logs])
    read = [read_file(Path(path), supplied) for path in files]
    rows = [row for _, found in read for row in found]
    with bar("rows", len(rows)) as progress:
        scored = price_rows(rows, pricing, progress)
    return Validation(title=f"{', '.join(files)} ({', '.join(dict.fromkeys(tool for tool, _ in read))})", scored=scored)


def _is_log(path: Path) -> bool:
    try:
        announce(path)
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return text.lstrip()[:1] not in ("{", "[") and is_startup_log(text)


def _log(path: str, supplied: Mapping[str, str]) -> LogFile:
    run, startup = read_startup_log(Path(path), supplied)
    return LogFile(
        path=path, described=f"{run.model} on {run.gpu} under {run.engine}", lines=compare_with_log(run, startup)
    )
