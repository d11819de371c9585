"""``make engines``: lower sixteen architectures to each backend, and write ``results/engines.md``.

Each result is a line of ``results/raw/engines.jsonl``, and is not found out again. ``--times`` also measures speed, on
one thread, beside other compilers: run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engines.architectures import ARCHITECTURES
from engines.runtimes import BACKENDS, COMPILERS
from fx import capture
from fx.lowering import lower
from pytest_fx.records.baseline import describe
from pytest_fx.records.records import describe_machine, write_atomically
from pytest_fx.tables import pairs

RESULT = Path("results/engines.md")
RECORDS = Path("results/raw/engines.jsonl")
_EXPLANATION = """\
Each model is captured with one image, sentence or sound, in float32, and lowered to each backend.

- *engines*: the regions that became engines. *FLOPs*: their share of the floating-point operations.
- *error*: the largest difference of an output, divided by the largest output.
- *over eager*: the median of the time ratios of eager and the program, with its 95 % interval, on one thread. All
  programs of a model run in turns in one process (`make engines ARGS=--times`, on a quiet machine). It is empty until
  measured.

PyTorch computes the networks of TensorRT, layer by layer: no engine of TensorRT has run. The other compilers get the
model itself. torch.ao computes in 8 bits, calibrated on the same input."""

Record = dict[str, Any]
Known = dict[tuple[str, str], Record]


def read() -> Known:
    """Return the newest results, by model and program."""
    records: Known = {}
    for line in RECORDS.read_text().splitlines() if RECORDS.exists() else ():
        record = json.loads(line)
        records.setdefault((record["model"], record["program"]), {}).update(record)
    return records


def keep(records: Known, model: str, program: str, **values: Any) -> None:
    """Write a result to the file at once."""
    machine = describe({**describe_machine(), "host": None, "commit": None})
    record = {"model": model, "program": program, **values, "machine": machine}
    with RECORDS.open("a") as file:
        file.write(json.dumps(record) + "\n")
    records.setdefault((model, program), {}).update(record)
    print(json.dumps(record)[:200], flush=True)


def programs_of(
    module: nn.Module, inputs: tuple[Tensor, ...], names: list[str]
) -> Iterator[tuple[str, Callable[..., Any] | None, Record]]:
    """Yield each named program of a model with what is known of it; ``None`` and the reason where there is none."""
    for name in names:
        try:
            if name in BACKENDS:
                lowered = lower(capture(module, inputs), BACKENDS[name], inputs)
                coverage = lowered.meta["lowering"]
                yield name, lowered, {"engines": len(coverage.parts), "share": coverage.flop_share}
            else:
                program = COMPILERS[name](module, inputs)
                program(*inputs)  # compiles
                yield name, program, {}
        except Exception as error:  # of whichever compiler
            yield name, None, {"why": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160]}"}


def measure(model: str, names: list[str], records: Known, rounds: int) -> None:
    """Lower a model, compare outputs with eager's, and time the programs in turns if there are ``rounds``."""
    torch.manual_seed(0)
    module, inputs = ARCHITECTURES[model]()
    expected = pairs.joined(module(*inputs)).double()
    programs: dict[str, Callable[[], Any]] = {}
    for name, program, values in programs_of(module, inputs, names):
        if program is not None:
            actual = pairs.joined(program(*inputs)).double()
            values["error"] = float((actual - expected).abs().max() / expected.abs().max())
            programs[name] = partial(program, *inputs)
        keep(records, model, name, **values)
    programs.pop("tensorrt, emulated", None)
    if not rounds:
        return
    programs["eager"] = partial(module, *inputs)
    for name, timing in pairs.time_rounds(programs, baseline="eager", rounds=rounds, threads=1).items():
        low, high = timing.interval
        keep(records, model, name, speedup=[round(number, 3) for number in (timing.speedup, low, high)])


def page(records: Known) -> str:
    """Return the table."""
    machines = sorted({record["machine"] for record in records.values()})
    lines = ["# Architectures in engines", "", f"`make engines` on {'; '.join(machines)}.", "", _EXPLANATION, ""]
    lines += [f"**{_result(records)}**", ""]
    lines += ["| model | program | engines | FLOPs | error | over eager |", "|---|---|---|---|---|---|"]
    for model in ARCHITECTURES:
        lines += [
            _row(model, name, records[model, name]) for name in (*BACKENDS, *COMPILERS) if (model, name) in records
        ]
    return "\n".join(lines) + "\n"


def _result(records: Known) -> str:
    """Return of how many models each backend makes one engine."""
    alone = {
        name: [records[model, name].get("engines") == 1 for model in ARCHITECTURES if (model, name) in records]
        for name in BACKENDS
    }
    counts = ", ".join(f"{name} {sum(flags)} of {len(flags)}" for name, flags in alone.items())
    return f"Models that are one engine: {counts}."


def _row(model: str, name: str, record: Record) -> str:
    speedup = "{:.2f} ({:.2f} to {:.2f})".format(*record["speedup"]) if "speedup" in record else ""
    error = f"{record['error']:.1e}" if "error" in record else record.get("why", "").replace("|", "\\|")
    share = f"{record['share']:.1%}" if record.get("share") is not None else ""
    return f"| {model} | {name} | {record.get('engines', '')} | {share} | {error} | {speedup} |"


def _is_complete(record: Record, name: str, with_times: bool) -> bool:
    is_timed = not with_times or name == "tensorrt, emulated" or "speedup" in record
    return "why" in record or ("error" in record and is_timed)


def main() -> int:
    """Measure the models without a result, and write the page; 1 if a model is not one engine of each runtime."""
    parser = argparse.ArgumentParser(prog="make engines", description=__doc__)
    parser.add_argument("--only", default="", help="only models in whose names this is")
    parser.add_argument("--again", action="store_true", help="also those that are known")
    parser.add_argument("--times", action="store_true", help="measure speed, beside other compilers")
    parser.add_argument("--rounds", type=int, default=30, help="calls of each program that are timed (30)")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    records, names = read(), [*BACKENDS, *(COMPILERS if chosen.times else ())]
    for model in ARCHITECTURES:
        is_known = all(_is_complete(records.get((model, name), {}), name, chosen.times) for name in names)
        if chosen.only in model and (chosen.again or not is_known):
            with torch.no_grad():
                measure(model, names, records, chosen.rounds if chosen.times else 0)
    write_atomically(RESULT, page(records))
    wanted = [records.get((model, name), {}) for model in ARCHITECTURES for name in list(BACKENDS)[:3]]
    return int(any(record.get("engines") != 1 for record in wanted))


if __name__ == "__main__":
    sys.exit(main())
