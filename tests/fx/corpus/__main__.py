"""Print the verdict on each program, for fx or, given ``torch.fx``, for that; ``--write`` writes the lists anew."""

from __future__ import annotations

import argparse
import importlib
from collections import Counter
from pathlib import Path

from .judge import REFUSED, RIGHT, judge
from .programs import REGISTRY

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", nargs="?", default="fx")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("-k", default="")
    given = parser.parse_args()
    library = importlib.import_module(given.library)
    for file in sorted(HERE.glob("*.py")):
        if not file.stem.startswith(("_", "test_", "judge", "programs", "source_programs")):
            importlib.import_module(f"{__package__}.{file.stem}")
    verdicts = {name: judge(one, library) for name, one in REGISTRY.items() if given.k in name}
    for name, verdict in verdicts.items():
        if verdict.kind != RIGHT:
            print(name, verdict.kind, " | ".join(verdict.why.splitlines())[:500])
    print(dict(Counter(verdict.kind for verdict in verdicts.values())))
    if given.write and given.library == "fx":
        wrong = [f"{n} {v.kind}\n" for n, v in verdicts.items() if v.kind not in (RIGHT, REFUSED)]
        refused = [f"{n}\n" for n, v in verdicts.items() if v.kind == REFUSED and not REGISTRY[n].must_refuse]
        (HERE / "not_yet.txt").write_text(
            "# Programs that are not captured rightly, nor refused by their line.\n" + "".join(wrong)
        )
        (HERE / "refused.txt").write_text("# Programs that are refused by their line.\n" + "".join(refused))
        guided = [
            name for name in sorted(map(str.strip, refused)) if judge(REGISTRY[name], library, True).kind == RIGHT
        ]
        (HERE / "guided.txt").write_text(
            "# Programs that are refused by their line, and captured with example inputs.\n"
            + "".join(f"{name}\n" for name in guided)
        )
    elif given.write:
        (HERE / "torch_fx.txt").write_text(
            "# What becomes of each program under torch.fx.\n" + "".join(f"{n} {v.kind}\n" for n, v in verdicts.items())
        )


if __name__ == "__main__":
    main()
