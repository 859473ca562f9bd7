"""The server of ``inferplan web``: a page, and a JSON API that answers as the commands do (docs/web.md)."""
