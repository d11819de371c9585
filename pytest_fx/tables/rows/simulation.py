"""``simulation``: run times estimated without running the program, beside measured ones (paper, section 6.3)."""

from __future__ import annotations

import copy
import functools
import re
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from fx import GraphModule
from fx.errors import FxError
from fx.passes import get_pass
from fx.simulation.known_devices import list_devices
from fx.simulation.run_times import simulate
from model_zoo import get_model, list_models
from pytest_fx.harness import evaluation
from pytest_fx.harness.capture import capture
from pytest_fx.tables.estimates import (
    Estimator,
    accuracy,
    compare,
    inductor_estimate,
    numbers_of,
    pairs_in_order,
    rank_correlation,
    reachable_rank,
    seconds_in_turns,
    torch_estimate,
)
from pytest_fx.tables.pairs import with_interval
from pytest_fx.tables.paper_runs import PAPER_RUNS, XEON
from pytest_fx.tables.table import Chart, Claim, Column, Entry, NotRun, Row, Scale, Table, register_table
from pytest_fx.timing.paired import BETWEEN_COPIES, median_interval, time_pairs

_BATCHES = (1, 8, 32)
_BATCHES_ON_GPU = (1, 32)
_PASSES = ("canonicalize", "fuse-conv-bn", "merge-parallel-layers")
_COPIES = 5
"""Timed copies of each of two programs: the memory addresses of tensors changed their ratio by up to 4 %."""


def _rows(scale: Scale) -> Sequence[Row]:
    small = [name for name in list_models() if get_model(name).small is None]
    names, batches = (list_models(), _BATCHES) if scale.size == "full" else (small[:3], _BATCHES[:1])
    rows = [_row(f"{name}, batch {batch}", scale, name, _measure, batch) for name in names for batch in batches]
    rows += [_row(f"{name}, passes", scale, name, _measure_passes, 1) for name in names]
    if scale.size != "full":
        return rows
    rows += [
        _row(_on_gpu(name, batch), scale, name, _measure_on_gpu, batch, on_gpu=True)
        for name in names
        for batch in (*_BATCHES_ON_GPU, *([256] if name == "resnet50" else []))
        if name not in small
    ]
    model, batch = "resnet50", _BATCHES_ON_GPU[-1]
    on_gpu, modes = _on_gpu(model, batch), ("operator-level-cost-model", "operator-level-benchmark")
    rows += [
        *(Row(run.name, run.estimate) for run in PAPER_RUNS),
        Row(f"{on_gpu}, by torch's cost model", partial(_by_torch, model, batch, modes[0]), on_gpu=True),
        Row(f"{on_gpu}, by torch's benchmark of operators", partial(_by_torch, model, batch, modes[1]), on_gpu=True),
        Row(f"{on_gpu}, by inductor", partial(_by_inductor, model, batch), on_gpu=True),
    ]
    return rows


def _on_gpu(model: str, batch: int) -> str:
    return f"{model}, GPU, batch {batch}"


def _row(name: str, scale: Scale, model: str, measure: Any, batch: int, *, on_gpu: bool = False) -> Row:
    settings = {"model": model, "batch": batch, "rounds": scale.rounds, "seed": scale.seed, "threads": 1}
    return Row(name, partial(measure, settings), settings, timed=True, on_gpu=on_gpu)


@functools.cache
def _estimator() -> Estimator:
    return Estimator()


def _measure(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    model = get_model(settings["model"])
    inputs = model.example_inputs(settings["batch"], seed=settings["seed"])
    program = capture(model.build())
    with evaluation.threads(settings["threads"]):
        (seconds,) = seconds_in_turns([partial(program, *inputs)], settings["rounds"])
        roofline, kernels = _estimator().both(program, inputs)
    return {
        "seconds": seconds,
        **numbers_of(roofline, "roofline"),
        **numbers_of(kernels, "kernels"),
        "rests_on": roofline.dominating,
        "refused": len(_estimator().measured.refused),
    }


def _measure_passes(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    model = get_model(settings["model"])
    inputs = model.example_inputs(settings["batch"], seed=settings["seed"])
    before = capture(model.build())
    ratios: dict[str, Any] = {}
    for name in _PASSES:
        after = _transformed(before.code, capture(model.build()), name)
        if after is None:
            continue
        with evaluation.threads(settings["threads"]):
            eager, transformed = _seconds_of_copies(before, after, inputs, settings["rounds"])
            first, second = (_estimator().both(program, inputs) for program in (before, after))
        ratios[name] = {
            "eager": eager,
            "transformed": transformed,
            "roofline": first[0].seconds / second[0].seconds,
            "kernels": first[1].seconds / second[1].seconds,
        }
    if not ratios:
        raise NotRun(f"none of {', '.join(_PASSES)} changes it")
    return {"passes": ratios}


def _seconds_of_copies(
    before: GraphModule, after: GraphModule, inputs: Sequence[torch.Tensor], rounds: int
) -> tuple[list[float], list[float]]:
    """Time two programs in turns, each in several copies at other memory addresses; return the seconds of both."""
    samples: tuple[list[float], list[float]] = [], []
    for _ in range(min(_COPIES, rounds)):
        programs = [partial(copy.deepcopy(program), *copy.deepcopy(inputs)) for program in (before, after)]
        for seconds, more in zip(samples, seconds_in_turns(programs, max(1, rounds // _COPIES)), strict=True):
            seconds += more
    return samples


def _transformed(code: str, program: GraphModule, name: str) -> GraphModule | None:
    """Apply a pass to a program; return None if it refuses the program or changes nothing."""
    try:
        after = get_pass(name)(program) or program
    except FxError:
        return None
    return after if after.code != code else None


def _measure_on_gpu(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Measure a model on the GPU in the machine, and estimate it by that device's public figures."""
    device = gpu_in_machine()
    model = get_model(settings["model"])
    inputs = model.example_inputs(settings["batch"], seed=settings["seed"])
    estimate = simulate(capture(model.build()), device, *inputs)
    call = partial(capture(model.build().cuda()), *(tensor.cuda() for tensor in inputs))
    timing = time_pairs(call, call, rounds=settings["rounds"], threads=settings["threads"], device="cuda")
    return {
        "seconds": timing.eager,
        "host_seconds": timing.eager_host,
        **numbers_of(estimate, "roofline"),
        "rests_on": estimate.dominating,
        "device": device,
    }


def gpu_in_machine() -> str:
    """Return the name of this machine's GPU in ``simulate``.

    Raises:
        NotRun: there is no GPU, or its figures are not known.
    """
    if not torch.cuda.is_available():
        raise NotRun("not run: no GPU")
    name = torch.cuda.get_device_name()
    device = next((known_device for known_device in list_devices() if known_device in re.split(r"[\s-]", name)), None)
    if device is None:
        raise NotRun(f"not run: the figures of {name} are not known, those of {', '.join(list_devices())} are")
    return device


def _by_torch(model: str, batch: int, mode: str) -> Mapping[str, Any]:
    return {"peer": torch_estimate(*_on_accelerator(model, batch), mode)}


def _by_inductor(model: str, batch: int) -> Mapping[str, Any]:
    return {"peer": inductor_estimate(*_on_accelerator(model, batch))}


def _on_accelerator(model: str, batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a model and its inputs, on a GPU if there is one."""
    zoo_model = get_model(model)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return zoo_model.build().to(device), tuple(tensor.to(device) for tensor in zoo_model.example_inputs(batch))


def _numbers(values: Mapping[str, Any]) -> Mapping[str, float]:
    if "seconds" in values:
        names = [name for name in values if name.startswith(("roofline", "kernels"))]
        return compare(values["seconds"], {name: values[name] for name in names})
    if "passes" in values:
        return _numbers_of_passes(values["passes"])
    numbers = {name: round(values[name] * 1e3, 6) for name in values if name not in ("paper", "roofline_spread")}
    if "paper" in values:
        paper = values["paper"]
        numbers["roofline_error"] = round(abs(values["roofline"] / paper - 1), 6)
        numbers["inside"] = float(values["roofline_low"] <= paper <= values["roofline_high"])
    return numbers


def _numbers_of_passes(passes: Mapping[str, Any]) -> Mapping[str, float]:
    """Return measured and estimated speed-ups by pass, and the number of estimates on the right side of 1."""
    numbers: dict[str, float] = {"decided": 0, "right": 0, "right_roofline": 0}
    for name, values in passes.items():
        ratios = [old / new for old, new in zip(values["eager"], values["transformed"], strict=True)]
        low, high = median_interval(tuple(ratios))
        first, second = _halves(ratios)
        numbers |= {
            f"{name}_speedup": statistics.median(ratios), f"{name}_speedup_low": low, f"{name}_speedup_high": high,
            f"{name}_half": first, f"{name}_other_half": second,
            f"{name}_kernels": values["kernels"], f"{name}_roofline": values["roofline"],
        }  # fmt: skip
        if low > 1 + BETWEEN_COPIES or high < 1 - BETWEEN_COPIES:
            faster = low > 1
            numbers["decided"] += 1
            numbers["right"] += (values["kernels"] > 1) == faster
            numbers["right_roofline"] += (values["roofline"] > 1) == faster
    return {name: round(value, 6) for name, value in numbers.items()}


def _halves(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the medians of two halves. Each takes every other pair of rounds, since the order alternates by round."""
    parts = ([ratio for place, ratio in enumerate(ratios) if place // 2 % 2 == half] for half in (0, 1))
    first, second = (statistics.median(part or ratios) for part in parts)
    return first, second


def _model_of(row: str) -> str:
    """Return the model of a row. A small sibling counts as the full model."""
    return row.partition(",")[0].removesuffix("_small")


def _totals(entries: Sequence[Entry]) -> Sequence[Entry]:
    totals = accuracy(entries, _model_of)
    passes = [entry for entry in entries if "decided" in entry.numbers]
    if passes:
        sums = {name: sum(entry.numbers[name] for entry in passes) for name in ("decided", "right", "right_roofline")}
        ranks = {name: round(value, 6) for name, value in _ranks(passes).items() if value == value}
        totals.append(Entry("all passes", {**sums, **ranks}, {}, None))
    return totals


def _ranks(passes: Sequence[Entry]) -> Mapping[str, float]:
    """Return the rank correlations of estimated and measured speed-ups over all passes, and their upper bounds."""
    kinds = ("", "_low", "_high", "_half", "_other_half", "_kernels", "_roofline")
    by_kind: dict[str, list[float]] = {kind: [] for kind in kinds}
    for entry in passes:
        for name in (number.removesuffix("_speedup") for number in entry.numbers if number.endswith("_speedup")):
            for kind in kinds:
                speedup = kind in ("", "_low", "_high")
                by_kind[kind].append(entry.numbers[f"{name}_speedup{kind}" if speedup else f"{name}{kind}"])
    intervals = list(zip(by_kind["_low"], by_kind["_high"], strict=True))
    right, pairs = pairs_in_order(intervals, by_kind["_kernels"])
    halves, reachable = reachable_rank(by_kind["_half"], by_kind["_other_half"])
    return {
        "rank": rank_correlation(by_kind[""], by_kind["_kernels"]),
        "rank_roofline": rank_correlation(by_kind[""], by_kind["_roofline"]),
        "halves": halves,
        "reachable": reachable,
        "pairs": pairs,
        "pairs_right": right,
    }


_FOR_PAPER = "{roofline:.0f} ms ({roofline_low:.0f} to {roofline_high:.0f}) for {paper_measured:.0f}"

register_table(
    Table(
        name="simulation",
        title="Estimated and measured run times",
        section="section 6.3",
        protocol=(
            "All programs run in float32 and evaluation mode. On a CPU they have one thread; times are in "
            "milliseconds. The columns are:\n\n"
            "- *measured*: the median time of the thread that calls the program, with its bootstrap 95 % interval. "
            "Other processes affect it only as far as they use caches and bandwidth.\n"
            "- *roofline*: `simulate` with this machine as `calibrate()` measured it. That calibration runs no model. "
            "*Kernels*: `simulate` with the time of each kernel, which runs alone, once for its sizes. Both have "
            "their 90 % interval.\n"
            "- *coverage*: the measurements inside of the interval. For each model the interval has the "
            "width that the other models need, and in brackets the reported one.\n"
            "- *passes, side right*: how often the estimated speed-up by kernels is on the same side of 1 as the "
            "measured interval. Only intervals that differ from 1 by more than 1 % count, since two copies of one "
            "program differ by that much. Five copies of both programs are timed.\n"
            "- *rank correlation*: for passes, that of all speed-ups, many of which are within 2 % of 1. *Reachable* "
            "is the rank correlation of an estimate without any error with these measurements. It is computed from "
            "the rank correlation of two halves of the measurements (in brackets), as the root of the formula by "
            "Spearman and Brown. *Pairs in order* counts pairs whose intervals do not overlap.\n\n"
            "Rows *on Xeon Gold 6138* and *on V100* are the paper's times in float32 beside the roofline of the public "
            "figures of these devices. Nothing was measured here, and no figure was fitted to the paper. *Paper in the "
            "interval* says if its time is in the interval of the estimate. The paper gives no batch size for ResNet50 "
            "and LearningToPaint: at most one of the batches of ResNet50 on the Xeon can be the paper's. Its threaded "
            "run is taken for one on the 20 cores of a single processor. Its times of int8 and of TensorRT are left "
            "out: `simulate` knows neither FBGEMM's kernels nor engines.\n\n"
            "On a GPU the measured time is that of the device, from CUDA's events. The roofline has the public figures "
            "of the device, none of which was measured there. "
            "PyTorch's own estimators run in the same process."
        ),
        claims=(
            Claim(
                "torch.fx enables the estimation of FLOPs, memory bandwidth usage, and data value sizes of the "
                "workload, allowing for estimation of the program runtime and memory consumption.",
                "no number",
                {
                    "all, by roofline": "run time by roofline: median error {error:.1%} over {rows:.0f} programs",
                    "all, by kernels measured once": "by kernels measured once: {error:.1%}",
                },
            ),
            Claim(
                "This system allows for rapid development of deep learning systems, enabling quick iteration in "
                "simulation rather than on real devices.",
                "no number",
                {
                    "all, by kernels measured once": "rank correlation of models {rank:.3f}",
                    "all passes": "the side of a pass's speed-up is right for {right:.0f} of {decided:.0f}, rank "
                    "correlation {rank:.3f} of {reachable:.3f} that measurements allow",
                    "resnet50 on V100, batch 256": f"the paper's ResNet50 on a V100: {_FOR_PAPER}",
                    f"resnet50 on {XEON}, 1 thread, batch 16": f"on one thread of its Xeon: {_FOR_PAPER}",
                    f"resnet50 on {XEON}, 20 threads, batch 16": f"on all threads: {_FOR_PAPER}",
                },
            ),
        ),
        rows=_rows,
        columns=(
            Column("measured", "{measured:.4g} ({measured_low:.4g} to {measured_high:.4g})"),
            Column("roofline", "{roofline:.4g} ({roofline_low:.4g} to {roofline_high:.4g})"),
            Column("off by", "{roofline_error:.1%}"),
            Column("kernels", "{kernels:.4g} ({kernels_low:.4g} to {kernels_high:.4g})"),
            Column("off by", "{kernels_error:.1%}"),
            Column("the paper", "{paper_measured:.4g}"),
            Column("paper in the interval", "{inside:.0f} of 1"),
            Column("PyTorch's", "{peer:.4g}"),
            Column("median error", "{error:.1%}"),
            Column("coverage of 90 %", "{coverage:.0%} ({own_coverage:.0%})"),
            Column("rank correlation", "{rank:.3f}"),
            Column("reachable", "{reachable:.3f} ({halves:.3f})"),
            Column("pairs in order", "{pairs_right:.0f} of {pairs:.0f}"),
            Column("passes, side right", "{right:.0f} of {decided:.0f}"),
        ),
        chart=Chart(
            title="Run time, estimated and measured",
            axis="run time in milliseconds",
            over=with_interval("measured", "measured", "baseline"),
            series=(
                with_interval("estimated by roofline, with 90 % intervals", "roofline", "ours"),
                with_interval("by kernels measured once", "kernels", "peer"),
            ),
        ),
        numbers=_numbers,
        totals=_totals,
        paper={run.name: {"measured": round(run.seconds * 1e3, 3)} for run in PAPER_RUNS},
    )
)
