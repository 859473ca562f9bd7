"""The command line in a browser: the folder that `make site` builds (docs/browser.md)."""
