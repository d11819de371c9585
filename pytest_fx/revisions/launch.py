"""The start of a process that serves one revision. It is run by its path, and needs no package.

Its argument is JSON: ``path``, folders to search for modules first; ``replaced``, folders to leave
out; ``last``,
folders to search after all others; ``serving``, the file to run; ``arguments``, the command line of pytest.
"""

import importlib.util
import json
import os
import sys

NEEDED = ("torch", "pytest", "pytest_fx")
"""Packages without which no revision can be served."""


def main() -> None:
    """Set the import path, and run the file of the settings with messages in place of the terminal."""
    settings = json.loads(sys.argv[1])
    replaced = {*settings["path"], *settings["replaced"]}
    others = [folder for folder in sys.path[1:] if os.path.realpath(folder) not in replaced]
    sys.path[:] = [*settings["path"], *others, *settings["last"]]
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            sys.exit(f"ERROR: {sys.executable} has no {name}")
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # what the revision prints goes to the log
    spec = importlib.util.spec_from_file_location("fx_serving", settings["serving"])
    assert spec is not None
    assert spec.loader is not None
    serving = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(serving)
    serving.serve(requests, answers, settings["arguments"])


if __name__ == "__main__":
    main()
