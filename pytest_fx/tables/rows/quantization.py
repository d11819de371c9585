"""``quantization``: the speed-up of 8-bit integers, on DeepRecommender first (section 6.2.1, appendix B, figure 6)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.proxy import TraceError

from fx.graph_module import GraphModule
from fx.quantize import Choice, QuantizationScheme, convert, prepare
from fx.quantize.scheme import Precision
from model_zoo import get_model, models_with_tag
from pytest_fx.harness import evaluation
from pytest_fx.harness.capture import capture
from pytest_fx.tables import pairs
from pytest_fx.tables.peers import Backend, ao_convert, ao_prepare
from pytest_fx.tables.table import Chart, Claim, Column, NotRun, Row, Scale, Series, Table, register_table
from pytest_fx.timing.clock import unprofiled
from pytest_fx.timing.memory import peak_memory

Program = Callable[..., Any]

_CALIBRATION = 16
"""Rows, images or sequences for calibration."""
_FEW = 16
"""The largest batch for weight-only programs. For larger ones, arithmetic dominates, and float32 is faster."""
_PHASES = ("prepare", "calibrate", "convert", "convert and first call")
_PAPER_PHASES = (
    ("The preparation phase takes 44 ms, …", "44 ms"),
    ("… the calibration phase takes 590 ms, …", "590 ms"),
    ("… and the conversion phase takes 3.8 seconds.", "3.8 s"),
)
_TRIALS = 3
"""Trials of each phase. They are few because torch.ao's phases take seconds."""
_MODELS: Mapping[str, tuple[Sequence[int], Sequence[int]]] = {
    "deep_recommender": ((1, 16, 64, 128, 256), (1, 2)),
    "resnet50": ((1, 8), (1,)),
    **{name: ((1, 8), (1,)) for name in models_with_tag("transformer") if "small" not in get_model(name).tags},
}
"""Models, with batch sizes and numbers of threads."""
_PRECISIONS: Mapping[str, Precision] = {"static": "int8", "dynamic": "dynamic", "weight_only": "weight-only"}
"""The precisions of our programs, by the names in this table."""
_AO: Mapping[str, tuple[Backend, bool]] = {
    "ao": ("x86", False),
    "ao_onednn": ("onednn", False),
    "ao_dynamic": ("x86", True),
}
"""torch.ao's programs: their kernels, and whether quantization is dynamic."""


def _rows(scale: Scale) -> Sequence[Row]:
    def row(name: str, measure: Callable[[], Mapping[str, Any]], settings: Mapping[str, Any], full: str) -> Row:
        return Row(name, measure, settings, timed=True, stands_for="" if name == full else full)

    rows: list[Row] = []
    for name, (batches, threads) in _MODELS.items():
        model = name if scale.size == "full" else get_model(name).small or name
        for number in threads:
            words = f"{number} thread{'s' * (number != 1)}"
            for batch, full_batch in zip(batches if scale.size == "full" else (1, 4), batches, strict=False):
                settings: dict[str, Any] = {"model": model, "threads": number, "batch": batch}
                settings |= {"rounds": scale.rounds, "seed": scale.seed}
                full = f"{name}, {words}, batch {full_batch}"
                rows.append(row(f"{model}, {words}, batch {batch}", partial(_measure, settings), settings, full))
        if name == "deep_recommender":
            for phase in _PHASES:
                settings = {"model": model, "phase": phase, "threads": 1, "trials": _TRIALS, "seed": scale.seed}
                rows.append(row(f"{model}, {phase}", partial(_measure_phase, settings), settings, f"{name}, {phase}"))
            rows.append(Row(f"{model}, GPU, batch 256", _on_gpu, on_gpu=True))
    return rows


def _on_gpu() -> Mapping[str, Any]:
    reason = "the kernels on integers are the CPU's" if torch.cuda.is_available() else "no GPU"
    raise NotRun(f"not run: {reason}")


def _measure(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    inputs = get_model(settings["model"]).example_inputs(settings["batch"], seed=settings["seed"])
    programs = dict(_programs(settings["model"], settings["seed"]))
    if settings["batch"] > _FEW:
        del programs["weight_only"]
    calls = {name: partial(program, *inputs) for name, program in programs.items()}
    values: dict[str, Any] = {}
    with torch.no_grad(), evaluation.threads(settings["threads"]):
        wanted = pairs.joined(calls["float"]())
        for name in programs:
            call = calls[name]
            call()  # the first call may pack weights
            values[f"{name}_bytes"] = peak_memory(call)
            if name != "float":
                values[f"{name}_sqnr"] = _sqnr(wanted, pairs.joined(call()))
        del wanted
    timings = pairs.time_rounds(calls, baseline="float", rounds=settings["rounds"], threads=settings["threads"])
    for name, timing in timings.items():
        values |= pairs.record_pairs(timing, "float", name)
    return values


def _sqnr(wanted: Tensor, actual: Tensor) -> float:
    """Return the signal-to-quantization-noise ratio in decibels."""
    noise = float((wanted - actual).square().sum())
    return round(float(10 * torch.log10(wanted.square().sum() / noise)), 3) if noise else 999.0


@lru_cache(maxsize=1)
def _programs(model: str, seed: int) -> Mapping[str, Program]:
    """Return the float model and all quantized programs, calibrated on the same data; cached by model."""
    zoo_model = get_model(model)
    module = zoo_model.build()
    data = zoo_model.example_inputs(_CALIBRATION, seed=seed + 1)
    programs: dict[str, Program] = {"float": module}
    with torch.no_grad():
        for name, precision in _PRECISIONS.items():
            prepared = prepare(capture(module), QuantizationScheme(Choice(precision=precision)))
            prepared(*data)
            programs[name] = convert(prepared)
        for name in ("ao", "ao_dynamic") if "transformer" in zoo_model.tags else ("ao", "ao_onednn"):
            with suppress(TypeError, TraceError):  # torch.fx does not capture it
                programs[name] = _by_ao(module, data, *_AO[name])
    return programs


def _by_ao(module: nn.Module, data: Sequence[Tensor], backend: Backend, dynamic: bool) -> nn.Module:
    prepared = ao_prepare(module, data, backend, dynamic=dynamic)
    prepared(*data)
    return ao_convert(prepared, backend)


def _measure_phase(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    seconds = _phases(settings["model"], settings["seed"], settings["trials"])
    return {library: [trial[settings["phase"]] for trial in trials] for library, trials in seconds.items()}


@lru_cache(maxsize=1)
def _phases(model: str, seed: int, trials: int) -> Mapping[str, Sequence[Mapping[str, float]]]:
    """Return the seconds of each phase in each trial, ours and torch.ao's in turns; cached for other phases."""
    zoo_model = get_model(model)
    module = zoo_model.build()
    data = zoo_model.example_inputs(_CALIBRATION, seed=seed + 1)
    program = capture(module)
    seconds: dict[str, list[Mapping[str, float]]] = {"fx": [], "torch_ao": []}
    with torch.no_grad(), evaluation.threads(1):
        ours = partial(_timed, partial(prepare, program), data, convert)
        theirs = partial(_timed, partial(ao_prepare, module, data, "x86"), data, partial(ao_convert, backend="x86"))
        ours()
        with unprofiled():
            for _ in range(trials):
                seconds["fx"].append(ours())
                seconds["torch_ao"].append(theirs())
    return seconds


def _timed(
    prepare: Callable[[], Any], data: Sequence[Tensor], convert: Callable[[Any], nn.Module | GraphModule]
) -> Mapping[str, float]:
    start = time.perf_counter()
    prepared = prepare()
    prepared.forward  # noqa: B018  # compile it
    ready = time.perf_counter()
    prepared(*data)
    calibrated = time.perf_counter()
    converted = convert(prepared)
    done = time.perf_counter()
    converted(*data)
    seconds = (ready - start, calibrated - ready, done - calibrated, time.perf_counter() - calibrated)
    return {phase: round(duration, 6) for phase, duration in zip(_PHASES, seconds, strict=True)}


def _numbers(values: Mapping[str, Any]) -> Mapping[str, float]:
    if "fx" in values:
        ours, theirs = (statistics.median(values[name]) for name in ("fx", "torch_ao"))
        return {"seconds": ours, "ao_seconds": theirs, "seconds_ratio": round(theirs / ours, 3)}
    numbers: dict[str, float] = {}
    for name in (*_PRECISIONS, *_AO):
        if name in values:
            numbers |= pairs.tell_pairs(values, "float", name)
            numbers[f"{name}_deviation"] = round(numbers[f"{name}_stdev"] / numbers[f"{name}_mean"], 6)
            numbers[f"{name}_sqnr"] = values[f"{name}_sqnr"]
    names = [name for name in ("float", *_PRECISIONS, *_AO) if name in values]
    return numbers | {f"{name}_mib": round(values[f"{name}_bytes"] / 2**20, 3) for name in names}


_FOUND = pairs.speedup_of("static", 2, " times as fast ") + ", deviation {static_deviation:.0%}"
_PHASE_FOUND = "{seconds:.3g} s; torch.ao in the same run {ao_seconds:.3g} s"
_FOUND_PHASES = (
    {"prepare": _PHASE_FOUND},
    {"calibrate": _PHASE_FOUND},
    {
        "convert": "{seconds:.3g} s without the packing of weights, which torch.ao includes",
        "convert and first call": "with it, and a first call: " + _PHASE_FOUND,
    },
)
"""The phases that answer each claim, with the format of their seconds."""

register_table(
    Table(
        name="quantization",
        title="Programs on 8-bit integers",
        section="section 6.2.1, appendix B, figure 6",
        protocol=(
            "`deep_recommender` has 197,951 items; small models have fewer of all. Float32 and 8-bit programs are "
            "called in turns, in rounds after warm-up. The float32 program is PyTorch's eager one, with MKL, which is "
            "slow on AMD's processors. A speed-up over float32 is the median of the ratios of the rounds, with its "
            "bootstrap 95 % interval. Seconds are mean ± standard deviation. The columns are:\n\n"
            "- *static*: scales come from calibration on 16 examples of normally distributed data.\n"
            "- *dynamic*: scales of inputs are computed in each call.\n"
            "- *weight-only*: only weights have 8 bits; inputs stay in floating point.\n"
            "- *torch.ao*: its FX quantization of the same model with the same data in the same rounds. It has its "
            "default kernels (x86) or oneDNN's. For the transformer it also computes scales in each call.\n"
            "- *SQNR*: the signal-to-quantization-noise ratio of the output.\n"
            "- *memory*: the peak of intermediate values and results.\n"
            "- *phase*: the time of a phase for DeepRecommender, the median of three. Packing of weights is part of "
            "torch.ao's conversion; in fx it happens in the first call."
        ),
        claims=(
            Claim(
                "Figure 6 shows that torch.fx-enabled quantization confers up to a 3.3x runtime performance "
                "improvement compared to the floating point model, with low variance …",
                "3.3 times in the text; 3.50 at batch 1, 1.10 at 256, deviations of 4 to 9 % of the mean (appendix B)",
                {
                    f"deep_recommender, 1 thread, batch {batch}": f"batch {batch}: {_FOUND}"
                    for batch in _MODELS["deep_recommender"][0]
                },
            ),
            *(
                Claim(sentence, took, {f"deep_recommender, {phase}": template for phase, template in phases.items()})
                for phases, (sentence, took) in zip(_FOUND_PHASES, _PAPER_PHASES, strict=True)
            ),
        ),
        rows=_rows,
        columns=(
            Column("rounds", "{trials}"),
            Column("float, s", pairs.seconds_of("float")),
            Column("static, s", pairs.seconds_of("static")),
            Column("static", pairs.speedup_of("static", 2)),
            Column("dynamic", pairs.speedup_of("dynamic", 2)),
            Column("weight-only", pairs.speedup_of("weight_only", 2)),
            Column("torch.ao", pairs.speedup_of("ao", 2)),
            Column("torch.ao, oneDNN", pairs.speedup_of("ao_onednn", 2)),
            Column("torch.ao, dynamic", pairs.speedup_of("ao_dynamic", 2)),
            Column(
                "SQNR, dB: static, dynamic, torch.ao",
                "{static_sqnr:.1f}, {dynamic_sqnr:.1f}, {ao_sqnr:.1f}",
            ),
            Column(
                "memory, MiB: float, static, dynamic, torch.ao",
                "{float_mib:.4g}, {static_mib:.4g}, {dynamic_mib:.4g}, {ao_mib:.4g}",
            ),
            Column("phase, s: fx, torch.ao", "{seconds:.3g}, {ao_seconds:.3g} ({seconds_ratio:.3g} times)"),
            Column("paper: float, s", pairs.seconds_of("paper_float")),
            Column("paper: int8, s", pairs.seconds_of("paper_static")),
            Column("paper: speed-up", "{paper_static_speedup:.2f}"),
            Column("paper: phase, s", "{paper_seconds:g}"),
        ),
        chart=Chart(
            title="Programs on 8-bit integers",
            axis="run time over that of the float32 model (lower is better; 95 % intervals)",
            series=(
                pairs.with_interval("static", "static_relative", "ours"),
                pairs.with_interval("dynamic", "dynamic_relative", "baseline"),
                pairs.with_interval("torch.ao", "ao_relative", "peer"),
                Series("the paper: Xeon", "paper_static_relative", "paper"),
            ),
            template="{:.3f}",
            reference=(1.0, "float32"),
        ),
        numbers=_numbers,
        paper={
            "deep_recommender, 1 thread, batch 1": pairs.paper(float=(0.0777, 0.00079), static=(0.0222, 0.0008)),
            "deep_recommender, 1 thread, batch 16": pairs.paper(float=(0.1980, 0.0104), static=(0.0639, 0.0057)),
            "deep_recommender, 1 thread, batch 64": pairs.paper(float=(0.3995, 0.0204), static=(0.2585, 0.0129)),
            "deep_recommender, 1 thread, batch 128": pairs.paper(float=(0.6717, 0.0228), static=(0.5369, 0.0413)),
            "deep_recommender, 1 thread, batch 256": pairs.paper(float=(1.2307, 0.0874), static=(1.1157, 0.0686)),
            "deep_recommender, prepare": {"seconds": 0.044},
            "deep_recommender, calibrate": {"seconds": 0.59},
            "deep_recommender, convert": {"seconds": 3.8},
        },
    )
)
