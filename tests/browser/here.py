"""The files of the browser's build in this Python: ``python -m tests.browser.here FOLDER LINES.json ANSWERS.json``.

The stand-ins stand where numpy and pydantic were, and nothing else that is installed is found.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    folder, lines, answers = sys.argv[1:]
    sys.path = [
        folder,
        *(path for path in sys.path if path and "site-packages" not in path and path != str(Path.cwd())),
    ]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "inferplan")]:
        del sys.modules[name]
    import boot

    boot.prepare()
    said = [json.loads(boot.answer(line)) for line in json.loads(Path(lines).read_text())]
    import numpy

    assert "browser" in numpy.__version__, "numpy itself was found"
    Path(answers).write_text(json.dumps(said))
