"""``python -m calibrate`` is ``inferplan calibrate``."""

from __future__ import annotations

import sys

from inferplan.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "calibrate")
    main()
