"""Print the verdict on each program, for fx or, given ``torch.fx``, for that; ``--write`` writes it into the lists."""

from __future__ import annotations

import argparse
import importlib
from collections import Counter
from pathlib import Path
from types import ModuleType

from .judge import REFUSED, RIGHT, Verdict, judge, names_in
from .programs import REGISTRY

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", nargs="?", default="fx")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("-k", default="")
    options = parser.parse_args()
    library = importlib.import_module(options.library)
    for file in sorted(HERE.glob("*.py")):
        if not file.stem.startswith(("_", "test_", "judge", "programs", "retold", "source_programs")):
            importlib.import_module(f"{__package__}.{file.stem}")
    verdicts = {name: judge(program, library) for name, program in REGISTRY.items() if options.k in name}
    for name, verdict in verdicts.items():
        if verdict.kind != RIGHT:
            print(name, verdict.kind, " | ".join(verdict.why.splitlines())[:500])
    print(dict(Counter(verdict.kind for verdict in verdicts.values())))
    if options.write and options.library == "fx":
        _write_ours(verdicts, library)
    elif options.write:
        kinds = names_in(HERE / "torch_fx.txt") | {name: verdict.kind for name, verdict in verdicts.items()}
        _write("torch_fx", "What becomes of each program under torch.fx.", kinds)


def _write_ours(verdicts: dict[str, Verdict], library: ModuleType) -> None:
    kinds = dict.fromkeys(names_in(HERE / "refused.txt"), REFUSED) | names_in(HERE / "not_yet.txt")
    kinds |= {name: verdict.kind for name, verdict in verdicts.items()}
    wrong = {name: kind for name, kind in kinds.items() if kind not in (RIGHT, REFUSED)}
    refused = [name for name, kind in kinds.items() if kind == REFUSED and not REGISTRY[name].must_refuse]
    _write("not_yet", "Programs that are not captured rightly, nor refused by their line.", wrong)
    _write("refused", "Programs that are refused by their line.", dict.fromkeys(refused, ""))
    recorded = names_in(HERE / "guided.txt")
    recorded |= {
        name: "" for name in verdicts if name in refused and judge(REGISTRY[name], library, True).kind == RIGHT
    }
    guided = [name for name in refused if name in recorded]
    what = "Programs that are refused by their line, and captured with example inputs."
    _write("guided", what, dict.fromkeys(guided, ""))


def _write(name: str, what: str, programs: dict[str, str]) -> None:
    """Write a list of programs, each with a word."""
    lines = [f"{program} {programs[program]}".strip() for program in REGISTRY if program in programs]
    (HERE / f"{name}.txt").write_text("".join(f"{line}\n" for line in [f"# {what}", *lines]))


if __name__ == "__main__":
    main()
