"""``inferplan import``."""

from __future__ import annotations

from pathlib import Path

import click

from inferplan.catalog.files import find_source
from inferplan.cli.layers import Layered
from inferplan.cli.options import writable
from inferplan.errors import UsageError
from inferplan.files import save


@click.command("import", cls=Layered)
@click.argument("path")
@click.option("-o", "output", metavar="FILE", callback=writable, help="Write the YAML to a file instead of stdout.")
@click.option("--name", help="Name of the model [the file's; of a config.json its folder's].")
@click.option("--verbose", is_flag=True, help="List the config fields without effect, on stderr.")
@click.option("--trace", is_flag=True, help="Build it with transformers, without weights, and record what runs.")
@click.option(
    "--trust-remote-code",
    is_flag=True,
    help="With --trace, run the code in the folder (auto_map), in a separate process.",
)
def import_command(
    path: str, output: str | None, name: str | None, verbose: bool, trace: bool, trust_remote_code: bool
) -> None:
    """A Hugging Face config (any .json), a checkpoint folder, a GGUF file or a hub id as a model YAML.

    A type or a field that our tables do not describe is read by transformers (extra: models); a field that neither
    understands is refused by name. Every command takes the YAML in place of a model name. With --trace, transformers
    reads even configs that the tables describe (docs/tracing.md).

    Example: inferplan import config.json -o my-model.yaml
    """
    from inferplan.models.huggingface.emit import to_yaml

    if trust_remote_code and not trace:
        raise UsageError("--trust-remote-code needs --trace", because="only a trace runs code")
    if trace:
        from inferplan.models.huggingface import Imported
        from inferplan.models.tracing import trace as traced

        imported = Imported(model=traced(Path(path), trust_remote_code=trust_remote_code), ignored=[])
    else:
        imported = find_source(path)
    model = imported.model.model_copy(update={"name": name}) if name else imported.model
    text = to_yaml(model)
    if output:
        save(output, text)
    else:
        click.echo(text, nl=False)
    if verbose:
        click.echo(f"ignored, because it changes no count: {', '.join(imported.ignored) or 'nothing'}", err=True)
