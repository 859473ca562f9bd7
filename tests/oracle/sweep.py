"""Every text-generation, image-text, speech and encoder type of the installed transformers against our counts.

``python -m tests.oracle.sweep [--types a,b] [--kinds text,vision,speech,encoder] [--variations 20] [--seed 0]
[--jobs 2] [--journal FILE]``

Each type's own default config and random valid variations of it are built on torch's meta device and imported; the
parameters and the growth of the cache must be equal. A type that the tables refuse is then traced, as every
command does with it, and held to the same counts. ``--write`` puts the table into
docs/model-coverage.md.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import io
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from joblib import Parallel, delayed

from inferplan.errors import InferplanError
from inferplan.models.huggingface import import_config
from inferplan.models.spec import ModelSpec
from tests.oracle import traced
from tests.oracle.built import Counts, Kind, build, config_of, count, growth, kinds
from tests.oracle.variations import variations

PAGE = Path(__file__).parents[2] / "docs" / "model-coverage.md"
Verdict = Literal["exact", "traced", "refused", "text", "wrong", "unbuilt"]
"""Equal in all that could be compared; not described, and a trace is equal; refused by name; text equal and a tower
said not to be counted; different; not built by transformers."""

FIGURES = ("elements a token", "elements a token beyond the windows", "elements of state")
UNLIKE: dict[str, tuple[tuple[str, ...], str]] = {
    "deepseek_v4": (FIGURES, "a key counts twice, as its value too: tests/oracle/test_mechanisms.py takes it once"),
    "falcon": (FIGURES, "the class copies the KV heads of the new architecture to every query head, and caches those"),
    "glm5_next": (FIGURES, "the class keeps every key of its indexer, and its gate, and pools them anew in each step"),
    "molmo2_text": (FIGURES, "a class without a head embeds, and keeps nothing here, whatever it gives back"),
}
"""Types whose class caches otherwise than an engine does: what of it is not compared, and why."""

SPARE: dict[str, tuple[Callable[[Any], int], str]] = {
    "longcat_flash": (
        lambda c: 2 * c.num_layers * c.zero_expert_num * c.expert_ffn_hidden_size * c.hidden_size,
        "the class allocates gate and up of the experts that give back their input; checkpoints have 560 B without",
    ),
}
"""Parameters that a class builds and no checkpoint stores."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One config of a type: the fields it was built with, the verdict and what it rests on."""

    fields: dict[str, Any]
    verdict: Verdict
    what: str = ""
    cached: bool = False
    """Whether the cache was compared too."""
    built: bool = True
    """Whether transformers built it."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """A type with its cases, that of the default config first."""

    name: str
    kind: str
    cases: list[Case] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """Wrong where one case is; else that of the default config."""
        wrong = any(case.verdict == "wrong" for case in self.cases)
        return "wrong" if wrong else self.cases[0].verdict

    @property
    def what(self) -> str:
        """The reason of the verdict: the first case that has it."""
        return next(case.what for case in self.cases if case.verdict == self.verdict)

    def number(self, *verdicts: str) -> int:
        """Cases of these verdicts."""
        return sum(case.verdict in verdicts for case in self.cases)


def compare(name: str, kind: Kind, fields: dict[str, Any], tracing: bool = True) -> Case:
    """One config, built and imported; traced where no importer describes all of it."""
    try:
        config = config_of(name, fields)
        built = build(config, kind)
        counts = count(built)
    except Exception as error:  # whatever a foreign class raises
        return Case(fields=fields, verdict="unbuilt", what=_line(error)) if fields else _unbuilt(name, error)
    case = described(name, kind, fields, (config, built, counts))
    if not tracing or case.verdict not in ("refused", "text"):
        return case
    verdict, why = traced.compared(name, config, built)
    if verdict == "exact":
        return replace(case, verdict="traced", cached=not why)
    if verdict == "wrong":
        return replace(case, verdict="wrong", what=f"traced: {why}")
    return replace(case, what=f"{case.what}; traced: {why}")


def described(name: str, kind: Kind, fields: dict[str, Any], found: tuple[Any, Any, Counts]) -> Case:
    """One config as the importer describes it, beside the built model and its counts."""
    config, built, counts = found
    try:
        said = config.to_dict() | {"architectures": [kind.architecture]}
        model = import_config(json.loads(json.dumps(said, default=str)), name, "sweep").model
    except InferplanError as error:
        if error.__cause__ is not None:  # a class that builds has no value that breaks ours
            return Case(fields=fields, verdict="wrong", what=f"crash: {_line(error.__cause__)}")
        return Case(fields=fields, verdict="refused", what=error.what + (f": {error.because}" if error.because else ""))
    except Exception as error:  # a defect of ours, to be listed beside the others
        return Case(fields=fields, verdict="wrong", what=f"crash: {_line(error)}")
    apart = [note for note in model.notes if "not counted" in note]
    if name in SPARE:
        counts = replace(counts, total=counts.total - SPARE[name][0](config))
    difference = parameters(model, counts, text_only=bool(apart))
    if difference:
        return Case(fields=fields, verdict="wrong", what=difference)
    cached = _cache(name, built, model)
    if isinstance(cached, str):
        return Case(fields=fields, verdict="wrong", what=cached)
    if apart:
        return Case(fields=fields, verdict="text", what=apart[0], cached=cached)
    return Case(fields=fields, verdict="exact", cached=cached)


def _unbuilt(name: str, error: Exception) -> Case:
    """The default of a type that its class does not build: refused where its name is."""
    try:
        import_config({"model_type": name}, name, "sweep")
    except InferplanError as refusal:
        if "model_type" in refusal.what:
            return Case(fields={}, verdict="refused", what=f"{refusal.what}: {refusal.because}", built=False)
    except Exception as crash:
        return Case(fields={}, verdict="wrong", what=f"crash: {_line(crash)}", built=False)
    return Case(fields={}, verdict="unbuilt", what=_line(error), built=False)


def parameters(model: ModelSpec, counts: Counts, *, text_only: bool = False) -> str:
    """What differs between a model of ours and a built one; empty where nothing does."""
    own = model.parameters["total"]
    if text_only:
        return "" if own == counts.text else f"text: {own:,} here, {counts.text} built"
    own += model.tower_parameters + (model.mtp_parameters if counts.prediction else 0)
    return "" if own == counts.total else f"parameters: {own:,} here, {counts.total:,} built ({own - counts.total:+,})"


def _cache(name: str, built: Any, model: ModelSpec) -> bool | str:
    """Whether the caches were compared; what differs where they do."""
    left = UNLIKE.get(name, ((), ""))[0]
    if left == FIGURES:
        return False
    limits = [cache.mask.size for cache, _ in model.caches() if cache.mask.kind in ("window", "chunk")]
    try:
        found = growth(built, limits)
    except Exception:  # the class does not run on meta
        return False
    if found is None:
        return False
    own = (
        model.kv_elements_per_token,
        sum(c.per_token * n for c, n in model.caches() if c.mask.kind not in ("window", "chunk")),
        model.state_elements_per_sequence,
    )
    if model.encoder is not None:  # the class reads as many tokens as it writes, and keeps as much of either
        own = (2 * own[0], 2 * own[1], own[2])
    different = [
        f"{label}: {mine:,} here, {theirs:,.0f} built"
        for label, mine, theirs in zip(FIGURES, own, found, strict=True)
        if mine != theirs and label not in left
    ]
    return "; ".join(different) or True


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:160]


def sweep(names: Iterable[str], number: int, seed: int, jobs: int = 1) -> Iterator[Result]:
    """Each type with its default config and ``number`` variations that its class accepts, ``jobs`` types at once."""
    ran = Parallel(n_jobs=jobs, return_as="generator", batch_size=1)(
        delayed(swept)(name, number, seed) for name in names
    )
    yield from ran


def swept(name: str, number: int, seed: int) -> Result:
    """One type."""
    kind, rng = kinds()[name], random.Random(f"{seed}{name}")
    cases = [compare(name, kind, {})]
    if cases[0].built:
        cases += _varied(name, kind, (number, cases[0].verdict == "traced"), rng)
    return Result(name=name, kind=kind.kind, cases=cases)


def _varied(name: str, kind: Kind, asked: tuple[int, bool], rng: random.Random) -> list[Case]:
    """So many variations; of a type that is only traced they are traced too."""
    cases: list[Case] = []
    number, tracing = asked
    drawn = variations(name, number, rng)
    for fields in (next(drawn) for _ in range(4 * number)):
        if len(cases) == number:
            break
        case = compare(name, kind, fields, tracing)
        if case.verdict != "unbuilt":
            cases.append(case)
    return cases


def journalled(path: str, names: list[str], results: Callable[[list[str]], Iterable[Result]]) -> Iterator[Result]:
    """The results of ``names``, those that a journal has from it and the others added to it as they come."""
    known = {}
    if path and Path(path).exists():
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            known[row["name"]] = Result(**row | {"cases": [Case(**case) for case in row["cases"]]})
    yield from (known[name] for name in names if name in known)
    for result in results([name for name in names if name not in known]):
        if path:
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(result), default=str) + "\n")
        yield result


def rows(results: list[Result]) -> list[dict[str, Any]]:
    """One row a type."""
    return [
        {
            "type": r.name,
            "kind": r.kind,
            "verdict": r.verdict,
            "exact": r.number("exact"),
            "traced": r.number("traced"),
            "text": r.number("text"),
            "refused": r.number("refused"),
            "wrong": r.number("wrong"),
            "cache": sum(case.cached for case in r.cases),
            "what": "" if r.verdict == "exact" else r.what,
        }
        for r in results
    ]


def render(results: list[Result], form: str) -> str:
    """The results as Markdown, CSV or JSON."""
    if form == "json":
        return json.dumps([asdict(r) | {"verdict": r.verdict} for r in results], indent=1)
    table = rows(results)
    if form == "csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(table[0]))
        writer.writeheader()
        writer.writerows(table)
        return text.getvalue().rstrip()
    head = list(table[0])
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_cell(row[key]) for key in head) + " |" for row in table]
    return "\n".join([summary(results), "", *lines])


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")[:200]


def summary(results: list[Result]) -> str:
    """Types by kind and verdict."""
    found = Counter((r.kind, r.verdict) for r in results)
    heads = ("exact", "traced", "text", "refused", "wrong", "unbuilt")
    lines = ["| kind | types | " + " | ".join(heads) + " |", "|" + "---|" * (len(heads) + 2)]
    for kind in dict.fromkeys(r.kind for r in results):
        numbers = [found[kind, head] for head in heads]
        lines.append(f"| {kind} | {sum(numbers)} | " + " | ".join(map(str, numbers)) + " |")
    all_kinds = Counter(r.verdict for r in results)
    lines.append(f"| all | {len(results)} | " + " | ".join(str(all_kinds[head]) for head in heads) + " |")
    cases = Counter(case.verdict for r in results for case in r.cases)
    told = ", ".join(f"{cases[head]} {head}" for head in heads if cases[head])
    return "\n".join([*lines, "", f"Of {sum(cases.values())} configs: {told}."])


def write(results: list[Result], number: int, seed: int) -> None:
    """Put the table between the marks of docs/model-coverage.md."""
    import transformers

    today = datetime.date.today()
    said = f"transformers {transformers.__version__}, {today}, {number} variations a type, seed {seed}."
    text = PAGE.read_text(encoding="utf-8")
    body = f"<!-- sweep -->\n{said}\n\n{render(results, 'markdown')}\n<!-- /sweep -->"
    text, found = re.subn(r"<!-- sweep -->.*<!-- /sweep -->", lambda _: body, text, flags=re.DOTALL)
    if not found:
        raise SystemExit(f"{PAGE} has no place for the sweep")
    PAGE.write_text(text, encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--types", default="", help="names, separated by commas; all unless given")
    parser.add_argument("--kinds", default="text,vision,speech,encoder")
    parser.add_argument("--variations", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="types at once")
    parser.add_argument("--format", choices=("markdown", "csv", "json"), default="markdown")
    parser.add_argument("--journal", default="", help="a file of finished types: they are not run again")
    parser.add_argument("--write", action="store_true", help="into docs/model-coverage.md")
    options = parser.parse_args(arguments)
    known, wanted = kinds(), options.kinds.split(",")
    names = options.types.split(",") if options.types else [n for n, kind in known.items() if kind.kind in wanted]
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"no type of this transformers: {', '.join(unknown)}")
    results = []

    def run(left: list[str]) -> Iterator[Result]:
        return sweep(left, options.variations, options.seed, options.jobs)

    for index, result in enumerate(journalled(options.journal, names, run), start=1):
        results.append(result)
        if sys.stderr.isatty():
            print(f"\r\033[K{index}/{len(names)} {result.name}: {result.verdict}", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    order = {name: index for index, name in enumerate(names)}
    results.sort(key=lambda result: order[result.name])
    if options.write:
        write(results, options.variations, options.seed)
    print(render(results, options.format))


if __name__ == "__main__":
    main()
