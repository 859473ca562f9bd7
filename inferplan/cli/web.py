"""``inferplan web``."""

from __future__ import annotations

import webbrowser

import click

from inferplan.cli.layers import Layered
from inferplan.cli.numbers import WholeNumber
from inferplan.errors import UsageError
from inferplan.extras import require

_ANY = ("0.0.0.0", "::")
"""Addresses that stand for all of this machine's: nobody else reaches it by them."""


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
    from inferplan.web.addresses import own_addresses
    from inferplan.web.keys import Keys
    from inferplan.web.serve import Place, serve

    if token is not None and no_token:
        raise UsageError("--token and --no-token", hint="leave one out")
    chosen = {"token": None} if no_token else {} if token is None else {"token": token}
    keys = Keys(**chosen, people=people)

    def reached(at: str, anywhere: str) -> list[str]:
        shown = at.partition("://")[2].rpartition(":")[0]
        found = [own for own in own_addresses() if own.startswith("[") is (anywhere == "::")]
        return [at.replace(shown, own, 1) for own in found] or [at]

    def ready(at: str) -> None:
        click.echo(f"listening on {keys.link(at)} (Ctrl-C ends it)", err=True)
        there = [url or at] if url or address not in _ANY else reached(at, address)
        for person in people:
            click.echo(f"for {person}: {', '.join(keys.link(one, person) for one in there)}", err=True)
        if url is None and address in _ANY:
            links = ", ".join(map(keys.link, there)) if there != [at] else f"its own address in the place of {address}"
            click.echo(f"from other machines: {links}", err=True)
        if url is None and not address.startswith(("127.", "localhost", "::1")):
            click.echo("HTTP is not encrypted: who sees the network's traffic reads it, the links too", err=True)
        if not no_browser:
            webbrowser.open(keys.link(at))

    serve(Place(host=address, port=port, url=url, folder=folder, keys=keys), CommandLine(), ready)
