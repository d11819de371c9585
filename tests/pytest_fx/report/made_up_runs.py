"""Runs that nobody made, of any size."""

from __future__ import annotations

import random
from dataclasses import asdict
from typing import Any

from pytest_fx.report.reported_run import ReportedRun
from pytest_fx.report.rows import SummaryRow
from pytest_fx.timing.paired import PairedTiming

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)><!-- \u2028 ]]> ${1} 'q' \"q\""
MACHINE = {"host": "quiet", "machine": "a processor", "cores": 2, "versions": {"torch": "2.10"}, "commit": "abc1234"}


def made_up_run(rows: int = 40, failures: int = 3, seed: int = 0, name: str = "run", pairs: int = 30) -> ReportedRun:
    """A run with rows of each verdict, each third of them timed in ``pairs`` pairs, and failures with programs."""
    chance = random.Random(seed)
    run = {"id": name, "begun": "2026-01-02T03:04:05+00:00", "ended": "2026-01-02T03:09:05+00:00", "arguments": ["-q"],
           "outcomes": {"passed": rows, "failed": failures}, "commit": "abc1234"}  # fmt: skip
    lines: list[dict[str, Any]] = []
    for number in range(rows):
        errors = {"dtype": "float32", "float64_error": 1.234e-14, "error": 3.21e-6, "eager_error": 2.13e-6}
        fields = {"nodes_before": 50, "nodes_after": 40, "changed": True, **errors}
        row = SummaryRow(f"model{number // 20}", f"pass-{number % 20}", **fields)
        kind = number % 10
        fields = asdict(row) | {"kept": True, **({"changed": False} if kind == 8 else {})}
        fields |= {9: {"outcome": "refuses"}, 7: {"outcome": "wrong: contract"}}.get(kind, {})
        line = {"kind": "row", "test": f"fx::test_{number}", "worker": "gw1", "machine": MACHINE, "timing": None}
        if number % 3 == 0:
            eager = [chance.lognormvariate(0, 0.05) * 1.2e-3 for _ in range(pairs)]
            transformed = [chance.lognormvariate(0, 0.05) * 1e-3 for _ in range(pairs)]
            line["timing"] = {"eager": eager, "transformed": transformed}
            middle = sorted(first / other for first, other in zip(eager, transformed, strict=True))[pairs // 2]
            fields |= {"speedup": middle, "speedup_low": middle * 0.97, "speedup_high": middle * 1.03, "noisy": False}
            fields |= {"verdict": "faster", "eager_seconds": 1.2e-3, "seconds": 1e-3, "peak_memory": 5000}
        lines.append({**line, "row": {field: value for field, value in fields.items() if value is not None}})
    wrong = [line for line in lines if line["row"].get("outcome") == "wrong: contract"]
    for line in wrong[:failures]:
        lines.append(made_up_failure(line["test"], line["row"]["model"], line["row"]["program"]))
    return ReportedRun(run, lines)


def made_up_failure(test: str, model: str, program: str) -> dict[str, Any]:
    code = "def forward(self, x):\n" + "".join(
        f"    a{n} = self.layer{n}(a{n - 1});  a{n - 1} = None\n" for n in range(60)
    )
    facts = {
        "model": model, "program": program, "law": "contract", "message": f"law 'contract': {program} changes {model}",
        "node": "%a30 = call_module[layer30](%a29)",
        "where": {"file": "net.py", "line": 7, "function": "f", "text": "x"},
        "before": code, "after": code.replace("self.layer30", "self.other30"), "before_line": 32, "after_line": 32,
        "node_map": {"of": "a30", "shape": [2, 3], "down": [2], "cells": ["012", "009"],
                     "smallest": 0.1, "largest": 2.0},
        "drawing": "<svg xmlns='http://www.w3.org/2000/svg' width='90' height='40'><rect width='9' height='9'/></svg>",
        "difference": f"{program}: 60 -> 60 nodes, 1 changed",
    }  # fmt: skip
    text = f"E   LawViolation: {program} changes what {model} computes"
    return {"kind": "failure", "test": test, "when": "call", "text": text, "place": {"file": "test_it.py", "line": 3},
            "facts": facts}  # fmt: skip


def timed(ratios: list[float]) -> PairedTiming:
    """A timing whose pairs have these ratios."""
    return PairedTiming(tuple(ratios), (1.0,) * len(ratios), threads=1, iterations=1)
