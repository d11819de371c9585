"""``python -m pytest_fx judge``: judge candidates by name, for programs that generate and try kernels."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from fx.errors import FxError
from pytest_fx.candidates.judge import Judge
from pytest_fx.candidates.verdict import RIGHT, WRONG, Verdict
from pytest_fx.loading import load_contract
from pytest_fx.named_objects import by_module, import_attribute, import_from
from pytest_fx.option_table import DEVICES, MODES
from pytest_fx.records.records import write_atomically


def main(arguments: Sequence[str], out: Callable[[str], Any] = sys.stdout.write) -> int:
    """Judge candidates, and return the exit status.

    It is 0 if all are right, 1 if any is wrong, 2 after an error, and 3 if any could not be judged.
    """
    parser = argparse.ArgumentParser(prog="python -m pytest_fx judge", description=main.__doc__)
    parser.add_argument("reference", help="the name of the reference: package.module:attribute")
    parser.add_argument("candidates", nargs="+", metavar="candidate", help="the names of candidates")
    parser.add_argument("--inputs", required=True, help="the name of example inputs, or of a function of a seed")
    parser.add_argument("--contract", default="close", help="close (default), exact or approximate(sqnr_db=…)")
    parser.add_argument("--forward-only", action="store_true", help="leave out gradients and training mode")
    parser.add_argument("--no-timing", action="store_true", help="do not time right candidates")
    parser.add_argument("--seed", type=int, default=0, help="seed of the drawn inputs (0)")
    parser.add_argument("--timeout", type=float, default=60.0, help="most seconds of a call (60)")
    parser.add_argument("--mode", default="both", choices=MODES, help="mode of modules (both)")
    parser.add_argument("--device", default="cpu", choices=DEVICES, help="run on this device (cpu)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the verdicts to this file, as a list")
    options = parser.parse_args(arguments)
    import_from(Path.cwd())
    torch.set_num_threads(1)
    verdicts: list[Verdict] = []
    try:
        kind = "function for inputs"
        inputs = import_attribute(by_module(options.inputs, kind), kind, accepts=lambda _: True)
        with Judge(
            options.reference,
            inputs,
            contract=load_contract(options.contract),
            forward_only=options.forward_only,
            timing=not options.no_timing,
            seed=options.seed,
            timeout=options.timeout,
            mode=options.mode,
            device=options.device,
        ) as judge:
            for candidate in options.candidates:
                verdicts.append(verdict := judge.judge(candidate))
                out(f"{verdict}\n")
                if options.json is not None:  # after each candidate: a later one may end the process
                    write_atomically(options.json, json.dumps([asdict(each) for each in verdicts], indent=2) + "\n")
    except FxError as error:
        out(f"{type(error).__name__}: {error}\n")
        return 2
    kinds = {verdict.verdict for verdict in verdicts}
    return 1 if WRONG in kinds else 0 if kinds == {RIGHT} else 3
