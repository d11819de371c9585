"""``fusion``: the speed-up of folding batch norm into convolutions on ResNet50 (paper, appendix C, figure 7)."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fx.passes import FuseConvBN
from model_zoo import get_model
from pytest_fx.harness import evaluation
from pytest_fx.harness.capture import capture
from pytest_fx.tables import pairs
from pytest_fx.tables.peers import OTHERS, compiled_by_others, torch_fx_fuse
from pytest_fx.tables.table import Chart, Claim, Column, NotRun, Row, Scale, Series, Table, register_table


def _rows(scale: Scale) -> Sequence[Row]:
    rows = _rows_of(scale, "resnet50", (1, 10), 256)
    if scale.size == "full":
        return rows
    small = _rows_of(scale, "resnet_tiny", (1, 2), 4)
    return [replace(row, stands_for=full.name) for row, full in zip(small, rows, strict=True)]


def _rows_of(scale: Scale, model: str, batches: Sequence[int], gpu_batch: int) -> list[Row]:
    cores = os.cpu_count() or 1
    cpu = [
        _row(f"{model}, CPU, {words}, batch {batch}", scale, model, "cpu", threads, batch)
        for words, threads in (("1 thread", 1), ("all threads", cores))
        for batch in batches
    ]
    return [*cpu, _row(f"{model}, GPU, batch {gpu_batch}", scale, model, "cuda", 1, gpu_batch)]


def _row(name: str, scale: Scale, model: str, device: str, threads: int, batch: int) -> Row:
    settings = {"model": model, "device": device, "threads": threads, "batch": batch, "dtype": "float32"}
    settings |= {"rounds": scale.rounds, "seed": scale.seed}
    return Row(name, partial(_measure, settings), settings, timed=True, on_gpu=device == "cuda")


def _measure(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    device = settings["device"]
    if device == "cuda" and not torch.cuda.is_available():
        raise NotRun("not run: no GPU")
    zoo_model = get_model(settings["model"])
    unfused = zoo_model.build().to(device)
    (images,) = zoo_model.example_inputs(settings["batch"], seed=settings["seed"])
    images = images.to(device)
    fused = FuseConvBN()(capture(copy.deepcopy(unfused)))
    compared = _compare(unfused, fused, images, settings["threads"])
    with evaluation.threads(settings["threads"]):
        others = compiled_by_others(unfused, (images,))
    timings = pairs.time_beside(
        partial(unfused, images),
        {"fused": partial(fused, images), "peer_fused": partial(torch_fx_fuse(unfused), images), **others},
        rounds=settings["rounds"],
        threads=settings["threads"],
        device=device,
    )
    values: dict[str, Any] = {}
    for name, timing in timings.items():
        values |= pairs.record_pairs(timing, "peer_unfused" if name == "peer_fused" else "unfused", name)
    return {**values, **compared}


def _compare(unfused: nn.Module, fused: nn.Module, images: Tensor, threads: int) -> Mapping[str, float]:
    """Count the outputs that exceed the paper's bound, in float64 and in float32."""
    with torch.no_grad(), evaluation.threads(threads), evaluation.default_dtype(torch.float32):
        reference = copy.deepcopy(unfused).double()
        wanted = reference(images.double())
        actual = FuseConvBN()(capture(reference))(images.double())
        different = pairs.outside(fused(images), unfused(images))
    return {
        "outputs": wanted.numel(),
        "outside": pairs.outside(actual, wanted),
        "outside_float32": different,
        "float64_error": float((wanted - actual).abs().max()),
    }


def _numbers(values: Mapping[str, Any]) -> Mapping[str, float]:
    return {
        **pairs.tell_pairs(values, "unfused", "fused"),
        **pairs.tell_others(values, "unfused", OTHERS),
        **pairs.tell_pairs(values, "peer_unfused", "peer_fused"),
        **{name: values[name] for name in ("outputs", "outside", "outside_float32", "float64_error", "threads")},
    }


_FOUND = pairs.speedup_of("fused", between=" times as fast ")

register_table(
    Table(
        name="fusion",
        title="Convolution and batch norm, fused",
        section="section 6.2.2, appendix C, figure 7",
        protocol=(
            "Calls of the unfused program, of the fused one and of the others alternate in rounds after warm-up. All "
            "are in float32 and evaluation mode. The columns are:\n\n"
            "- *speed-up*: the median of the time ratios of the pairs, with its bootstrap 95 % interval. Seconds are "
            "mean ± standard deviation.\n"
            "- *torch.fx*: the speed-up by `torch.fx.experimental.optimization.fuse`, in the same rounds.\n"
            "- *torch.compile*: the speed-up of the unfused program by Inductor with `freezing`, also with batch norms "
            "folded.\n"
            "- *ONNX Runtime*: likewise, by our backend `onnxruntime`. A dash means that the row is older than the "
            "column, or that the compiler failed.\n"
            "- *outside*: the outputs that differ by more than the paper's bound (rtol=1e-5, atol=1e-8), in float64 "
            "and in float32. In float32, rounding errors alone exceed this bound.\n\n"
            "The paper gives neither batch sizes nor the number of threads. Its times are shown beside batches of 10 "
            "and 256, which are guesses; the page on simulation has estimates of them. It calls a run time of "
            "1/1.40 a 40 % reduction."
        ),
        claims=(
            Claim(
                "Figure 7 shows approximately a 6% latency reduction for the GPU case, …",
                "1.062 times as fast",
                {"resnet50, GPU, batch 256": _FOUND},
            ),
            Claim(
                "… a 40% latency reduction on CPU with default intra-op parallelism, …",
                "1.407 times as fast",
                {
                    "resnet50, CPU, all threads, batch 1": f"batch 1: {_FOUND}",
                    "resnet50, CPU, all threads, batch 10": f"batch 10: {_FOUND}",
                },
            ),
            Claim(
                "… and a smaller 18% latency reduction with intra-op parallelism disabled (i.e. OMP_NUM_THREADS=1).",
                "1.179 times as fast",
                {
                    "resnet50, CPU, 1 thread, batch 1": f"batch 1: {_FOUND}",
                    "resnet50, CPU, 1 thread, batch 10": f"batch 10: {_FOUND}",
                },
            ),
            Claim(
                "Numerical correctness is confirmed via an epsilon equivalence comparison (rtol=1e-05, atol=1e-08) of "
                "the outputs of the fused and unfused implementations.",
                "equal within the bound",
                {
                    "resnet50, CPU, 1 thread, batch 10": "outside of the bound: {outside:,} of {outputs:,} outputs in "
                    "float64, {outside_float32:,} in float32"
                },
            ),
        ),
        rows=_rows,
        columns=(
            Column("pairs", "{trials}"),
            Column("unfused, s", pairs.seconds_of("unfused")),
            Column("fused, s", pairs.seconds_of("fused")),
            Column("speed-up", pairs.speedup_of("fused")),
            Column("torch.fx", pairs.speedup_of("peer_fused")),
            *(Column(heading, pairs.speedup_of(name)) for name, heading in OTHERS.items()),
            Column("outside: float64, float32", "{outside:,}, {outside_float32:,} of {outputs:,}"),
            Column("paper: unfused, s", pairs.seconds_of("paper_unfused")),
            Column("paper: fused, s", pairs.seconds_of("paper_fused")),
            Column("paper: speed-up", "{paper_fused_speedup:.3f}"),
        ),
        chart=Chart(
            title="Batch norm folded into convolutions",
            axis="run time over that of the unfused model (lower is better; 95 % intervals)",
            series=(
                pairs.with_interval("fx", "fused_relative", "ours"),
                pairs.with_interval("torch.fx", "peer_fused_relative", "peer"),
                Series("the paper: Xeon, V100", "paper_fused_relative", "paper"),
            ),
            template="{:.3f}",
            reference=(1.0, "unfused"),
        ),
        numbers=_numbers,
        paper={
            "resnet50, CPU, 1 thread, batch 10": pairs.paper(unfused=(2.0231, 0.23050), fused=(1.7166, 0.25091)),
            "resnet50, CPU, all threads, batch 10": pairs.paper(unfused=(0.2996, 0.02835), fused=(0.2129, 0.03491)),
            "resnet50, GPU, batch 256": pairs.paper(unfused=(0.1887, 0.00048), fused=(0.1777, 0.00049)),
        },
    )
)
