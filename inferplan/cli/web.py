"""``inferplan web``."""

from __future__ import annotations

import webbrowser

import click

from inferplan.cli.layers import Layered
from inferplan.cli.numbers import WholeNumber
from inferplan.errors import UsageError
from inferplan.extras import require


@click.command("web", cls=Layered)
@click.option(
    "--host",
    "address",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on: this machine's own by default.",
)
@click.option("--port", type=WholeNumber(0, 65535), default=8765, show_default=True, help="Port; 0 takes a free one.")
@click.option(
    "--token", metavar="TEXT", help="What the page asks for; INFERPLAN_WEB_TOKEN keeps it from view [random]."
)
@click.option("--no-token", is_flag=True, help="Answer whoever reaches the address.")
@click.option(
    "--person", "people", metavar="NAME", multiple=True, help="A link of its own for this person; repeatable."
)
@click.option(
    "--public-url", "url", metavar="URL", help="The address by which others reach it, where a proxy stands before it."
)
@click.option("--folder", metavar="DIR", help="Folder from which requests may read files [none].")
@click.option("--no-browser", is_flag=True, help="Do not open the page.")
def web_command(
    *,
    address: str,
    port: int,
    token: str | None,
    no_token: bool,
    people: tuple[str, ...],
    url: str | None,
    folder: str | None,
    no_browser: bool,
) -> None:
    """A page in the browser: a deployment, its memory, its roofline and its curves, updated as you change options. Its
    JSON API takes the options of the commands and gives their answers (docs/web.md). It needs the extra web, makes no
    network connections, and ends with Ctrl-C.

    Example: inferplan web
    """
    require("web", "the page")
    from inferplan.cli.programs import CommandLine
    from inferplan.web.keys import Keys
    from inferplan.web.serve import Place, serve

    if token is not None and no_token:
        raise UsageError("--token and --no-token", hint="leave one out")
    chosen = {"token": None} if no_token else {} if token is None else {"token": token}
    keys = Keys(**chosen, people=people)

    def ready(at: str) -> None:
        click.echo(f"listening on {keys.link(at)} (Ctrl-C ends it)", err=True)
        for person in people:
            click.echo(f"for {person}: {keys.link(url or at, person)}", err=True)
        if url is None and address in ("0.0.0.0", "::"):
            click.echo(f"from other machines: this machine's own address in the place of {address}", err=True)
        if not no_browser:
            webbrowser.open(keys.link(at))

    serve(Place(host=address, port=port, url=url, folder=folder, keys=keys), CommandLine(), ready)
