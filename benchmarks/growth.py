"""The growth of a process that repeats a job: MiB, objects and tensors for each thousand repetitions.

Each job runs in a separate process and is warmed up. If torch alone can do the job, a row shows its growth for
comparison. Resident memory is noisy; the numbers of objects and tensors, counted after a collection, are not.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import json
import linecache
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import hypothesis
import pytest
import torch
from hypothesis import HealthCheck, Phase
from torch import nn

import fx
from model_zoo import get_model
from pytest_fx import check_pass

from .memory import MEBIBYTE, in_fresh_process, process_bytes

GOAL = 10.0
"""Upper limit in MiB for each thousand repetitions."""


def programs(count: int) -> None:
    """Try a pass on random programs."""
    importlib.import_module("sympy")  # torch imports it for some random program; do so before the measurement
    done = 0
    while done < count:
        some = min(100, count - done)
        settings = hypothesis.settings(
            max_examples=some,
            phases=[Phase.generate],
            database=None,
            suppress_health_check=[HealthCheck.too_slow],
        )
        check_pass("fuse-conv-bn", settings=settings, seed=done, min_changed=0)
        done += some


def lowerings(count: int) -> None:
    """Capture a small network, lower it and run it."""
    module = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU()).eval()
    inputs = torch.randn(1, 3, 32, 32)
    for _ in range(count):
        lowered = fx.lower(fx.symbolic_trace(module), "onednn", [inputs])
        with torch.no_grad():
            lowered(inputs)


def traces(count: int, symbolic_trace: Callable[[nn.Module], nn.Module] = fx.symbolic_trace) -> None:
    """Capture a small ResNet and run it."""
    zoo = get_model("resnet_tiny")
    module, inputs = zoo.build().eval(), zoo.example_inputs(1)
    for number in range(count):
        program = symbolic_trace(module)
        if number % 10 == 0:
            with torch.no_grad():
                program(*inputs)


def tests(count: int) -> None:
    """Run tests of a model and a pass that changes it, in one session."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        (Path(folder) / "test_again.py").write_text(
            f"import pytest\n"
            f"@pytest.mark.parametrize('again', range({count}))\n"
            f"def test_again(fx_model, fx_equal, again): fx_equal('fuse-conv-bn')\n",
            encoding="utf-8",
        )
        options = ["-p", "no:cacheprovider", "-p", "no:terminal", "-W", "ignore", "--fx-no-timing"]
        if pytest.main([*options, "--fx-model=resnet_tiny", f"--rootdir={folder}", folder]):
            sys.exit("a test failed")
        sys.modules.pop("test_again")


JOBS: dict[str, tuple[Callable[[int], None], int, int]] = {
    "programs of check_pass": (programs, 2000, 1000),  # until the caches of torch and Hypothesis are filled
    "lowerings": (lowerings, 1000, 100),
    "traces": (traces, 3000, 300),
    "traces by torch.fx": (partial(traces, symbolic_trace=torch.fx.symbolic_trace), 3000, 300),
    "tests of the suite": (tests, 600, 120),
}
"""Jobs: the function, the number of measured repetitions, and the number of warm-up repetitions."""


def counts() -> dict[str, float]:
    """Return the current memory and numbers of objects, after the C library has returned free memory."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    objects = gc.get_objects()
    return {
        "MiB": process_bytes("VmRSS") / MEBIBYTE,
        "objects": len(objects),
        "tensors": sum(issubclass(type(item), torch.Tensor) for item in objects),
        "lines": len(linecache.cache),
        "modules": len(sys.modules),
    }


def measure_here(job: str, parts: int) -> dict[str, float]:
    """Do a job in this process; return the growth of the process for each thousand repetitions."""
    act, count, warm_up = JOBS[job]
    count = max(1, count // parts)
    act(max(1, warm_up // parts))
    before = counts()
    act(count)
    after = counts()
    return {name: (after[name] - before[name]) * 1000 / count for name in after}


def main() -> None:
    """Print the table, or, with ``--here``, measure one job in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--here", choices=JOBS, help="measure this one in this process and print JSON")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    parser.add_argument("--quick", action="store_true", help="a tenth of each")
    options = parser.parse_args()
    parts = 10 if options.quick else 1
    if options.here:
        torch.set_num_threads(options.threads)
        print(json.dumps(measure_here(options.here, parts)))
        return
    print(f"{'for each thousand':<28}{'MiB':>9}{'objects':>10}{'tensors':>10}{'lines':>8}{'modules':>9}   goal")
    for job, (_, count, _) in JOBS.items():
        how = ["--here", job, "--threads", str(options.threads), *(["--quick"] if options.quick else [])]
        growth = in_fresh_process("growth", *how, threads=options.threads)
        cells = "".join(f"{growth[name]:>{width}.1f}" for name, width in (("MiB", 9), ("objects", 10), ("tensors", 10)))
        cells += f"{growth['lines']:>8.1f}{growth['modules']:>9.1f}"
        print(f"{f'{count // parts:,} {job}':<28}{cells}   under {GOAL:g} MiB", flush=True)


if __name__ == "__main__":
    main()
