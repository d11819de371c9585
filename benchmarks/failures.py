"""The cost of a failure in CPU seconds of pytest, and the size of the small test that it leaves behind.

The runs are:

- a wrong pass beside a right one, on a model of three layers;
- each fault planted in ``tests/pytest_fx/failures``, with the nodes and the cost of the written test;
- a wrong program, and a wrong pass, on ResNet50.

CPU seconds cover the whole process, including start-up; other processes have little influence on them.
"""

from __future__ import annotations

import importlib
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .paired import parse

FAULTS = Path(__file__).parents[1] / "tests" / "pytest_fx" / "failures"
"""The folder with the planted faults and their models."""
QUICK = ("LinearToMatmul", "sort_branches")
_MODULE = """
import torch
from torch import nn
from fx.passes import FuseConvBN

class ThreeLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.Linear(32, 10)

    def forward(self, image):
        return self.last(torch.relu(self.norm(self.conv(image))).mean((2, 3)))

def three_layers():
    torch.manual_seed(0)
    model = ThreeLayers()
    model(torch.randn(16, 3, 32, 32))
    return model.eval(), torch.randn(4, 3, 32, 32)

def fold(program):
    return FuseConvBN()(program)

def fold_without_epsilon(program):
    norms = [module for module in program.modules() if isinstance(module, nn.BatchNorm2d)]
    before = [norm.eps for norm in norms]
    for norm in norms:
        norm.eps = 0.0
    folded = FuseConvBN()(program)
    for norm, eps in zip(norms, before, strict=True):
        norm.eps = eps
    return folded

def drop_an_activation(program):
    nodes = [node for node in program.graph.find_nodes(op="call_module") if "relu" in node.target]
    node = nodes[len(nodes) // 2]
    node.replace_all_uses_with(node.args[0])
    program.graph.erase_node(node)
    program.recompile()
    return program
"""
_TEST = """
import mine

def test_wrong_program(fx_traced, fx_equal):
    fx_equal(mine.drop_an_activation(fx_traced))
"""


def run(folder: Path, threads: int, *options: str) -> tuple[str, float]:
    """Run pytest in a folder; return what it prints, and its CPU seconds."""
    paths = [str(folder), str(FAULTS), str(FAULTS.parents[2]), os.environ.get("PYTHONPATH", "")]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    output = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", "--fx-no-timing", *options],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return output, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def written_test(output: str) -> tuple[int | None, str | None]:
    """Return the number of nodes and the path of the written test that a failing run names."""
    text = "\n".join(line.removeprefix("E").strip() for line in output.splitlines())
    match = re.search(r"a test of (\d+) nodes that shows it alone:\s+(\S+)", text)
    return (None, None) if match is None else (int(match[1]), match[2])


def main() -> None:
    """Print a line for each run, and a summary."""
    options = parse(__doc__, rounds=1)
    sys.path[:0] = [str(FAULTS)]
    planted: Any = importlib.import_module("passes_with_faults").PLANTED

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "mine.py").write_text(_MODULE, encoding="utf-8")
        (folder / "test_mine.py").write_text(_TEST, encoding="utf-8")
        right, wrong = (
            run(folder, options.threads, "--fx-model", "mine:three_layers", "--fx-pass", f"mine:{name}")
            for name in ("fold", "fold_without_epsilon")
        )
        ratio = wrong[1] / right[1]
        print(
            f"three layers: right {right[1]:.1f} s, wrong {wrong[1]:.1f} s, {ratio:.2f} times (goal: at most 2), ",
            end="",
        )
        print(f"test of {written_test(wrong[0])[0]} nodes", flush=True)
        sizes: list[int] = []
        for name in QUICK if options.quick else planted:
            selection = ("--fx-model", planted[name].model, "--fx-pass", f"passes_with_faults:{name}")
            output, seconds = run(folder, options.threads, *selection, "-k", "test_pass_keeps_its_contract")
            nodes, path = written_test(output)
            cost = f"fails in {run(folder, options.threads, path)[1]:.1f} s" if path else "was not written"
            print(f"  {name}: {seconds:.1f} s; its test of {nodes} nodes {cost}", flush=True)
            sizes += [] if nodes is None else [nodes]
        written = f"{len(sizes)} of {len(QUICK if options.quick else planted)} tests written"
        print(f"planted faults: {written}, median of {statistics.median(sizes):g} nodes (goal: at most 8)", flush=True)
        model = ("--fx-model", "resnet_tiny" if options.quick else "resnet50")
        _, of_program = run(folder, options.threads, *model, "test_mine.py")
        output, of_pass = run(
            folder,
            options.threads,
            *model,
            "--fx-pass",
            "mine:drop_an_activation",
            "-k",
            "test_pass_keeps_its_contract",
        )
        print(
            f"{model[1]}: a wrong program {of_program:.1f} s, a wrong pass {of_pass:.1f} s (goal: at most 30), ", end=""
        )
        print(f"test of {written_test(output)[0]} nodes")


if __name__ == "__main__":
    main()
