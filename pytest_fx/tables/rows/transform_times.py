"""``transform-times``: the times to capture models and to fuse them (paper, section 6.2.2: 81 ms)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch.fx
from torch import nn
from torch.fx.proxy import TraceError

from fx.passes import FuseConvBN
from model_zoo import get_model, list_models
from pytest_fx.harness.capture import GraphModule, capture
from pytest_fx.tables import pairs
from pytest_fx.tables.peers import torch_fx_fuse
from pytest_fx.tables.table import Chart, Claim, Column, NotRun, Row, Scale, Series, Table, register_table
from pytest_fx.timing.paired import time_pairs

_FUSED = ("learning_to_paint_actor", "resnet50", "unet")
"""Models with batch norms after convolutions."""
_MILLISECONDS = 1e3
_LINES = len(inspect.getsource(inspect.getmodule(FuseConvBN) or FuseConvBN).splitlines())
"""Lines of the pass, including its documentation."""


def _rows(scale: Scale) -> Sequence[Row]:
    captured = [name for name in list_models() if "small" not in get_model(name).tags]
    works: dict[str, tuple[Callable[[nn.Module], None], Callable[[nn.Module], None], Sequence[str]]] = {
        "capture": (_capture, _torch_fx_capture, captured),
        "capture and fuse-conv-bn": (_fuse, _torch_fx_fuse, _FUSED),
    }
    return [_row(name, work, ours, theirs, scale) for work, (ours, theirs, names) in works.items() for name in names]


def _row(
    full: str,
    work: str,
    ours: Callable[[nn.Module], None],
    theirs: Callable[[nn.Module], None],
    scale: Scale,
) -> Row:
    model = full if scale.size == "full" else get_model(full).small or full
    stands_for = "" if scale.size == "full" else f"{full}, {work}"
    settings = {"model": model, "work": work, "threads": 1, "rounds": scale.rounds}
    return Row(
        f"{model}, {work}", partial(_measure, settings, ours, theirs), settings, timed=True, stands_for=stands_for
    )


def _measure(
    settings: Mapping[str, Any], ours: Callable[[nn.Module], None], theirs: Callable[[nn.Module], None]
) -> Mapping[str, Any]:
    module = get_model(settings["model"]).build()
    try:
        theirs(module)
    except (TraceError, TypeError) as error:
        raise NotRun(f"torch.fx cannot capture it: {error}") from None
    timing = time_pairs(partial(theirs, module), partial(ours, module), rounds=settings["rounds"], threads=1)
    return pairs.record_pairs(timing, "torch_fx", "fx")


def _capture(module: nn.Module) -> None:
    _compile(capture(module))


def _fuse(module: nn.Module) -> None:
    program = FuseConvBN()(capture(module))
    program.recompile()
    _compile(program)
    _release(program)


def _torch_fx_capture(module: nn.Module) -> None:
    torch.fx.symbolic_trace(module)


def _torch_fx_fuse(module: nn.Module) -> None:
    _release(torch_fx_fuse(module))


def _compile(program: GraphModule) -> None:
    """Compile ``forward``, as torch.fx does at once; ours compiles at its first use."""
    _ = program.forward


def _release(program: nn.Module) -> None:
    """Free the new weights. Programs are reference cycles, and the garbage collector is off during timing."""
    program.__dict__.clear()


def _numbers(values: Mapping[str, Any]) -> Mapping[str, float]:
    numbers = pairs.tell_pairs(values, "torch_fx", "fx")
    seconds = {name: number for name, number in numbers.items() if name.endswith(("_median", "_mean", "_stdev"))}
    return {**numbers, **{f"{name}_ms": round(number * _MILLISECONDS, 6) for name, number in seconds.items()}}


register_table(
    Table(
        name="transform-times",
        title="Transform times",
        section="section 6.2.2",
        protocol=(
            "The time is that from a module in evaluation mode to a program whose `forward` is compiled, on one "
            "thread. Calls of torch.fx and of fx alternate, in pairs after warm-up. Times are median (mean ± standard "
            "deviation). The ratio is the median of the ratios of the pairs, with its bootstrap 95 % interval. Both "
            "leave the module unchanged: `torch.fx.experimental.optimization.fuse` copies it first, and fx needs no "
            "copy."
        ),
        claims=(
            Claim(
                "The runtime of the transformation itself was 81 ms, the majority of which consists of the arithmetic "
                "operations to fuse the parameter tensors together.",
                "81 ms",
                {
                    "resnet50, capture and fuse-conv-bn": "{fx_median_ms:.1f} ms with the capture; "
                    "torch.fx in the same run {torch_fx_median_ms:.1f} ms",
                    "resnet50, capture": "the capture alone {fx_median_ms:.1f} ms",
                },
            ),
            Claim(
                "The whole transformation and test harness amount to fewer than 150 lines of Python, …",
                "fewer than 150",
                {
                    "resnet50, capture and fuse-conv-bn": "`examples/fusion.py` has fewer than 75, with tests on a "
                    f"model and on random programs, and a timing; `fuse-conv-bn` itself has {_LINES}, beside the "
                    "modules that it imports, since it also takes functional, transposed and linear layers, layers "
                    "called twice, half precision and training, keeps gradients and aliases, and says why it left a "
                    "layer alone"
                },
            ),
        ),
        rows=_rows,
        columns=(
            Column("pairs", "{trials}"),
            Column("fx, ms", "{fx_median_ms:.2f} ({fx_mean_ms:.2f} ± {fx_stdev_ms:.2f})"),
            Column("torch.fx, ms", "{torch_fx_median_ms:.2f} ({torch_fx_mean_ms:.2f} ± {torch_fx_stdev_ms:.2f})"),
            Column("torch.fx / fx", pairs.speedup_of("fx", 2)),
            Column("the paper, ms", "{paper_fx_median_ms:g}"),
        ),
        chart=Chart(
            title="From a module to a program, and to a fused one",
            axis="milliseconds, median, on a logarithmic axis (lower is better)",
            series=(
                Series("fx", "fx_median_ms", "ours"),
                Series("torch.fx", "torch_fx_median_ms", "peer"),
                Series("the paper: machine not named", "paper_fx_median_ms", "paper"),
            ),
            template="{:.3g}",
            logarithmic=True,
        ),
        numbers=_numbers,
        paper={"resnet50, capture and fuse-conv-bn": {"fx_median_ms": 81}},
    )
)
