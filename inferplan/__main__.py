"""``python -m inferplan``: the command line, where its script is not on the path."""

from inferplan.cli import main

if __name__ == "__main__":
    main()
