"""``python -m catalogue.round FOLDER``: try the passes of a blind round, once.

Each file of the folder holds a pass. ``w07_fold_scale.py`` has a wrong one, the function ``fold_scale``, and ``fixed``,
the same pass without the fault; ``r03_fold_scale.py`` has a right one. They are tried with the defaults of
``check_pass``. A wrong pass is truly caught if ``fixed`` keeps the law on the program that is shown.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import textwrap
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pytest_fx import LawViolation, NothingJudged, check_pass, check_program

from .minimality import shown_in

CAUGHT, DOUBTFUL, FLAGGED = "truly caught", "caught, and so is the pass without its fault", "flagged"
GREEN, UNJUDGED, FAILED = "green", "not judged", "the search failed"


@dataclass(frozen=True, slots=True)
class Attempt:
    """The verdict of the search on one pass."""

    name: str
    """The name of its file."""
    verdict: str
    """One of those above."""
    law: str
    """The law that is broken, if one is."""
    seconds: float
    """Seconds of a processor that it took."""
    message: str
    """The message of the search."""


def attempt(name: str, seed: int = 0) -> Attempt:
    """Try the pass in a module, which can be imported by its name."""
    module, started = import_module(name), time.process_time()
    verdict, law = GREEN, ""
    with tempfile.NamedTemporaryFile() as no_folder:  # where no test file can be, the message shows the whole program
        try:
            message = str(check_pass(f"{name}:{name[4:]}", seed=seed, folder=Path(no_folder.name)))
        except NothingJudged as error:
            verdict, message = UNJUDGED, str(error)
        except LawViolation as violation:
            law, message, verdict = violation.law, str(violation), FLAGGED
            if name.startswith("w"):
                doubt = _doubt(module, violation)
                verdict, message = (DOUBTFUL, f"{doubt}\n{message}") if doubt else (CAUGHT, message)
        except Exception:
            verdict, message = FAILED, traceback.format_exc()
    return Attempt(name, verdict, law, time.process_time() - started, message)


def _doubt(module: Any, violation: LawViolation) -> str:
    """Return the reason for which the failure may not be the pass's fault; empty if ``fixed`` keeps the law on the
    program.
    """
    mode, source = shown_in(violation)
    names: dict[str, Any] = {"__name__": "shown"}
    try:
        exec(source, names)
        check_program(module.fixed, names["build"], names["inputs"], laws=(violation.law,), mode=mode)
    except Exception as error:
        return f"without its fault: {type(error).__name__}: {str(error).splitlines()[0]}"
    return ""


def attempts(folder: Path, names: Iterable[str] = (), seed: int = 0) -> Iterator[Attempt]:
    """Try the passes of a folder, or those whose files begin with one of ``names``."""
    sys.path.insert(0, str(folder.resolve()))
    for file in sorted(folder.glob("[wr][0-9][0-9]_*.py")):
        if file.stem.startswith(tuple(names) or ""):
            yield attempt(file.stem, seed)


def figures(tried: list[Attempt]) -> str:
    """Return the figures of a round, in the order of ``FirstTry``."""
    wrong, right = (Counter(each.verdict for each in tried if each.name[0] == kind) for kind in "wr")
    doubtful = f" ({wrong[DOUBTFUL]} more to look at)" if wrong[DOUBTFUL] else ""
    return (
        f"wrong: {wrong[CAUGHT]} of {wrong.total()} truly caught{doubtful}, {wrong[UNJUDGED]} not judged; "
        f"right: {right[FLAGGED]} of {right.total()} flagged, {right[UNJUDGED]} not judged"
    )


def main() -> int:
    """Print what is said of each pass, and the figures."""
    parser = argparse.ArgumentParser(prog="python -m catalogue.round", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the files are")
    parser.add_argument("names", nargs="*", help="beginnings of the names of files to try; by default all")
    parser.add_argument("--seed", type=int, default=0, help="of the programs (0)")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of passes that are wrong
    tried: list[Attempt] = []
    for each in attempts(options.folder, options.names, options.seed):
        tried.append(each)
        law = f" by '{each.law}'" if each.law else ""
        print(f"{each.name}: {each.verdict}{law}, {each.seconds:.1f} s", flush=True)
        print(textwrap.indent(each.message, "    "), flush=True)
    print(figures(tried))
    return int(any(each.verdict == FAILED for each in tried))


if __name__ == "__main__":
    sys.exit(main())
