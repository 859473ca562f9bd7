"""The committed table of facts against the files that it was read from, where they are at hand."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from tests.oracle.config_facts import facts_of

TABLE = Path(__file__).parents[1] / "fixtures" / "model_facts.csv"


def test_the_table_is_what_the_files_say(shared: Path) -> None:
    with TABLE.open(encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    seen, wrong = 0, []
    for row in table:
        name = f"{row['checkpoint'].replace('/', '--')}.json"
        for folder in (shared / "model_configs", shared / "model_configs" / "real"):
            if not (folder / name).is_file():
                continue
            config = json.loads((folder / name).read_text(encoding="utf-8"))
            if config.get("_source_kind", "real_config_json") != "real_config_json":
                break  # written by hand or in another's code: not the file that the row names
            facts = facts_of(config) or {}
            seen += 1
            if facts != {key: row[key] for key in ("layers", "context", "kv")}:
                wrong.append((row["model"], facts))
            break
    assert not wrong
    assert seen >= 80
