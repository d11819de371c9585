"""Table of the options: each row is an option of the command line, a setting of the ini file, and a marker keyword."""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

SIZES = ("full", "small")
DEVICES = ("cpu", "cuda")
CAPTURES = ("auto", "symbolic", "guided", "export")
PRECISIONS = ("float16", "bfloat16", "int8")
MODES = ("train", "eval", "both")
FORMS = (
    *("auto", "fx", "torch.fx", "functional", "aten", "exported-program", "export-pass", "graph", "pattern-matcher"),
    *("quantizer", "partitioner", "backend", "compiler", "module", "joint", "joint-partitioner"),
)
Number = TypeVar("Number", int, float)


def _number(text: str, read: Callable[[str], Number], is_right: Callable[[Number], bool], wanted: str) -> Number:
    with contextlib.suppress(ValueError):
        if is_right(number := read(text)):
            return number
    raise argparse.ArgumentTypeError(f"must be {wanted}, not {text!r}")


def _positive(text: str) -> int:
    return _number(text, int, lambda number: number >= 1, "an integer from 1 on")


def _natural(text: str) -> int:
    return _number(text, int, lambda number: number >= 0, "an integer from 0 on")


def _count_or_name(text: str) -> int | str:
    is_name = not text.lstrip("+-").replace(".", "").isdigit() and bool(text.strip())
    return text if is_name else _number(text, int, lambda number: number >= 1, "an integer from 1 on, or a pass")


def _positives(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(_positive(part.strip()) for part in text.split(",")))


def _tolerance(text: str) -> float:
    return _number(text, float, lambda number: 0 <= number < math.inf, "a number from 0 on")


def _seconds(text: str) -> float:
    return _number(text, float, lambda number: 0 < number < math.inf, "a number of seconds above 0")


def _minutes(text: str) -> float:
    return _number(text, float, lambda number: 0 < number < math.inf, "a number of minutes above 0")


def _budget(text: str) -> float:
    return _number(text, float, lambda number: 0 <= number < math.inf, "a number of seconds from 0 on")


def _percentage(text: str) -> float:
    def read(text: str) -> float:
        return float(text.removesuffix("%")) / 100 if text.endswith("%") else -1.0

    return _number(text, read, lambda share: 0 <= share < math.inf, "a percentage from 0 on, such as 5%")


def _folder(text: str) -> str:
    existing = next(path for path in (Path(text).absolute(), *Path(text).absolute().parents) if path.exists())
    if not existing.is_dir():
        raise argparse.ArgumentTypeError(f"must be a folder that exists or can be made: {existing} is a file")
    return text


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"must be {' or '.join(choices)}, not {text!r}")
        return text

    return parse


def setting_of(flag: str) -> str:
    """Return the name of an option in the ini file: ``fx_no_timing`` for ``"no-timing"``."""
    return f"fx_{keyword_of(flag)}"


def keyword_of(flag: str) -> str:
    """Return the name of an option in Python: ``no_timing`` for ``"no-timing"``."""
    return flag.replace("-", "_")


class GivenModel:
    """A factory that returns a fixed model: a module, or a pair of a module and its example inputs."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.__name__ = type(model[0] if isinstance(model, tuple) else model).__name__

    def __call__(self) -> Any:
        """Return the model, as a factory does."""
        return self.model

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GivenModel) and self.model is other.model

    def __hash__(self) -> int:
        return id(self.model)


def as_factory(model: Any) -> Any:
    """Wrap a module, or a pair of a module and its inputs, as a factory; return other values, such as names, as is."""
    return GivenModel(model) if _is_module(model) or _is_pair(model) else model


def _is_module(value: Any) -> bool:
    """Return whether ``value`` is an instance of ``torch.nn.Module``, which is not imported here."""
    return any(f"{kind.__module__}.{kind.__name__}" == "torch.nn.modules.module.Module" for kind in type(value).__mro__)


def _is_pair(value: Any) -> bool:
    """Return whether ``value`` is a module with its inputs, and not two models or names."""
    return isinstance(value, tuple) and len(value) == 2 and _is_module(value[0]) and not _names_model(value[1])


def _names_model(value: Any) -> bool:
    return callable(value) or isinstance(value, str)


@dataclass(frozen=True, slots=True)
class PluginOption:
    """One option of the command line, the ini file and the marker."""

    flag: str
    """Name on the command line: ``"batch"`` for ``--fx-batch``."""
    default: Any
    """Default value."""
    parse: Callable[[str], Any]
    """Function from the text to the value; raises ``ArgumentTypeError`` for an invalid text."""
    metavar: str
    """Placeholder for the value in the help."""
    help: str
    """Help text, with an example."""
    field: str = ""
    """Field of :class:`Options` for the value, if its name differs from the keyword."""
    repeatable: bool = False
    """True if the option may be given several times; in the ini file, on separate lines."""

    @property
    def name(self) -> str:
        """Field of :class:`Options` for the value."""
        return self.field or keyword_of(self.flag)

    @property
    def keyword(self) -> str:
        """Name in the marker: that of the flag, but ``pass_`` for ``pass``, which is a keyword of Python."""
        return "pass_" if self.flag == "pass" else keyword_of(self.flag)

    @property
    def setting(self) -> str:
        """Name in the ini file: ``fx_batch`` for ``"batch"``."""
        return setting_of(self.flag)

    def read(self, value: Any) -> Any:
        """Return the value of the option for ``value`` from Python code: a text, or the value itself.

        Raises ``ArgumentTypeError`` for a value that the command line would refuse.
        """
        if self.repeatable:
            several = isinstance(value, (list, tuple)) and not _is_pair(value)
            values = tuple(value) if several else (value,)
            return tuple(map(as_factory, values)) if self.flag == "model" else values
        if value is None and not self.default:
            return self.default
        if self.parse is str:
            return value
        if self.parse is _percentage and isinstance(value, float):
            return self.parse(f"{value:%}")
        return self.parse(",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))


TABLE = (
    PluginOption(
        "model", (), str, "NAME",
        "Verify this model: a name of the zoo, `all`, `tag:vision`, or package.module:factory. A factory takes no "
        "arguments and returns an nn.Module, a pair (nn.Module, example inputs) or a ZooModel. Repeatable. Without "
        "file arguments the built-in suite runs, and nothing else. Example: --fx-model resnet50",
        "models", repeatable=True,
    ),
    PluginOption(
        "pass", (), str, "NAME",
        "Apply this pass: a registered name, package.module:callable, or several joined by commas, which run one "
        "after the other. Repeatable. Default: every registered pass that changes the model and is not approximate by "
        "contract. "
        "Example: --fx-pass fuse-conv-bn",
        "passes", repeatable=True,
    ),
    PluginOption(
        "check", (), str, "NAME",
        "Try this pass on random programs, and check the laws that every pass must keep (pytest_fx.laws): a registered "
        "name, package.module:callable, or several such as fuse-conv-bn,mine:Fusion{size=3}. The places of models of "
        "--fx-model where it acts are tried first. Repeatable. "
        "Example: --fx-check mypackage.passes:fuse_gelu",
        "checks", repeatable=True,
    ),
    PluginOption(
        "hunt", (), str, "NAME",
        "Search for faults of this compiler or pass until the time of --fx-minutes is over: a fault does not end the "
        "search. Faults go to .pytest_fx/hunts/NAME, where a later run continues. Repeatable. "
        "Example: --fx-hunt inductor --fx-minutes 30",
        "hunts", repeatable=True,
    ),
    PluginOption(
        "minutes", 10.0, _minutes, "N", "Minutes for each --fx-hunt (default: 10). Example: --fx-minutes 30"
    ),
    PluginOption(
        "known", None, str, "FILE",
        "Skip these faults under --fx-hunt: their keys, one a line, as the report prints them. "
        "Example: --fx-known known_faults.txt",
        "known_faults",
    ),
    PluginOption(
        "examples", None, _positive, "N",
        "Random programs for each --fx-check (default: that of Hypothesis's profile). Example: --fx-examples 500",
    ),
    PluginOption(
        "mutate", None, _count_or_name, "NAME|N",
        "Try mutants of this pass: the pass with one fault in its source, such as a negated condition. The summary has "
        "the number of those that the search for random programs kills, and the lines of the others. Files and folders "
        "name tests of yours that run on each mutant, too. A number tries so many mutants of each pass of --fx-check "
        "(default: none). Example: --fx-mutate mypackage.passes:fuse_gelu tests/test_fuse_gelu.py",
    ),
    PluginOption(
        "candidate", (), str, "NAME",
        "Judge whether this kernel or rewrite, package.module:attribute, may replace --fx-reference, and time it if it "
        "may. Each name is imported in a process of its own. Repeatable. "
        "Example: --fx-reference torch:softmax --fx-candidate kernels:softmax --fx-inputs shapes:inputs",
        "candidates", repeatable=True,
    ),
    PluginOption(
        "reference", None, str, "NAME|FILE",
        "The module or function that every --fx-candidate is compared with: package.module:attribute. Without a "
        "candidate, a file of --fx-save-answers, with which every --fx-model is compared, and every --fx-pass on it. "
        "Example: --fx-reference torch.nn.functional:gelu",
    ),
    PluginOption(
        "save-answers", None, str, "FILE",
        "Save inputs, outputs, float64 outputs and outputs of layers of every --fx-model to this file, and judge "
        "nothing. On another machine, --fx-reference FILE compares with them. "
        "Example: --fx-model mymodels:net --fx-save-answers net.safetensors",
    ),
    PluginOption(
        "advise", None, _one_of(PRECISIONS), "PRECISION",
        "Measure the effect of each layer of every --fx-model in float16, bfloat16 or int8. Print a list of layers "
        "to keep in higher precision so that --fx-contract holds. "
        "Example: --fx-model mymodels:net --fx-advise bfloat16 --fx-contract 'approximate(sqnr_db=40)'",
    ),
    PluginOption(
        "against", None, str, "REF",
        "Judge and time every --fx-pass beside the same pass at this git revision, which is checked out into a "
        "temporary folder, or in another environment, named by the path of its interpreter. Fail where the pass is "
        "wrong here and was right there, where it is slower than --fx-fail-slower allows, and if nothing was compared. "
        "Example: --fx-model resnet50 --fx-pass mypackage.passes:fuse_gelu --fx-against main",
        "against",
    ),
    PluginOption(
        "layer", (), str, "PATH|CLASS",
        "Save the outputs of these layers with --fx-save-answers: a path, a pattern of paths (layer3.*), or the name "
        "of a class (default: the direct parts of the model). Repeatable. Example: --fx-layer 'encoder.layers.*'",
        "layers", repeatable=True,
    ),
    PluginOption(
        "inputs", None, str, "NAME",
        "Inputs of --fx-reference: package.module:attribute, an example or a function of a seed. "
        "Example: --fx-inputs shapes:inputs",
    ),
    PluginOption(
        "device", "cpu", _one_of(DEVICES), "cpu|cuda", "Run on this device (default: cpu). Example: --fx-device cuda"
    ),
    PluginOption(
        "dtype", None, str, "NAME",
        "Work in this dtype (default: the model's own). The reference is float64 all the same. "
        "Example: --fx-dtype bfloat16",
    ),
    PluginOption(
        "batch", (), _positives, "N[,N…]",
        "Samples in a model's example inputs; several sizes are tried one after the other (default: 1 for a model of "
        "the zoo; as many as its inputs have for another). Example: --fx-batch 1,8",
    ),
    PluginOption(
        "mode", None, _one_of(MODES), "train|eval|both",
        "Judge models in this mode, or each in both. Default: evaluation mode; passes also in training mode if the "
        "factory returns its model so and it makes a difference. Example: --fx-mode train",
    ),
    PluginOption(
        "threads", (1,), _positives, "N[,N…]",
        "Threads of PyTorch in timings, one timing for each number; outputs are compared with the first number "
        "(default: 1). Example: --fx-threads 1,2",
    ),
    PluginOption(
        "contract", None, str, "TEXT",
        "Hold every pass to this contract instead of its own: exact, close, approximate(DECIBELS), flipped(SHARE), or "
        "package.module:attribute for a contract, such as a metric, or a dict of contracts by output. "
        "Example: --fx-contract exact",
    ),
    PluginOption(
        "rtol", None, _tolerance, "X",
        "Relative tolerance of close in float64, and in the working dtype if it exceeds the allowance for rounding "
        "(default: the contract's, 1e-5, in float64 alone). Example: --fx-rtol 1e-3",
    ),
    PluginOption(
        "atol", None, _tolerance, "X",
        "Absolute tolerance of close, likewise (default: the contract's, 1e-8, in float64 alone). "
        "Example: --fx-atol 1e-4",
    ),
    PluginOption(
        "error-factor", None, _tolerance, "X",
        "How many times eager's own rounding error close allows in the working dtype (default: the contract's, 8). "
        "Example: --fx-error-factor 2",
    ),
    PluginOption(
        "detect", None, _tolerance, "X",
        "Fail a comparison whose detection limit is higher: the smallest relative change of all outputs that it would "
        "have caught, shown in the table. Example: --fx-detect 1e-4",
    ),
    PluginOption(
        "rounds", 30, _positive, "N",
        "Pairs of eager and transformed calls that a timing takes (default: 30, and more while they do not decide, see "
        "--fx-budget). Example: --fx-rounds 100",
    ),
    PluginOption(
        "budget", None, _budget, "SECONDS",
        "Add pairs to an undecided timing, up to 32 times as many, until it has taken this long (default: 20; 0 with "
        "--fx-rounds). Example: --fx-budget 120",
    ),
    PluginOption(
        "capture", "auto", _one_of(CAPTURES), "auto|symbolic|guided|export",
        "Capture models by this method: symbolic tracing; tracing guided by the example inputs; torch.export, for a "
        "call with the example inputs; or the first of these that accepts the model (default: auto). "
        "Example: --fx-capture export",
    ),
    PluginOption(
        "form", "auto", _one_of(FORMS), "auto|FORM",
        "Give passes the model in this form: fx, torch.fx, functional, aten, exported-program, export-pass, graph, "
        "pattern-matcher, quantizer, partitioner, backend, compiler, module, joint or joint-partitioner; or in the "
        "form that is recognized from each pass (default: auto). Example: --fx-form aten",
    ),
    PluginOption(
        "min-changes", 0, _natural, "N",
        "Fail a pass that makes fewer changes in a model: its recorded edits, or else operations that are gone or new "
        "(default: any number). Example: --fx-min-changes 53",
    ),
    PluginOption(
        "leaf", (), str, "PATH|CLASS",
        "Keep modules of a model whole when it is captured: a path, a pattern of paths (layer3.*), or a class by its "
        "name, alone or with its module. Repeatable. Example: --fx-leaf timm.layers.Attention",
        "leaves", repeatable=True,
    ),
    PluginOption(
        "tracer", None, str, "NAME",
        "Capture with this tracer, package.module:Class: a subclass of fx.Tracer or of torch.fx.Tracer, or a function "
        "that returns a tracer. Example: --fx-tracer mypackage.tracing:BlockTracer",
    ),
    PluginOption(
        "size", "full", _one_of(SIZES), "full|small",
        "Use zoo models at this size; small ones run in milliseconds (default: full). Example: --fx-size small",
    ),
    PluginOption(
        "seed", 0, _natural, "N",
        "Draw the example inputs of zoo models from this seed (default: 0). Example: --fx-seed 7",
    ),
    PluginOption(
        "baseline", None, str, "FILE",
        "Compare speed-ups with those of an earlier run: its .pytest_fx/last_run.json, or its output of "
        "--benchmark-json. Ratios are compared, not seconds. Example: --fx-baseline main.json",
    ),
    PluginOption(
        "fail-slower", None, _percentage, "PERCENT",
        "Fail a timing with a significant slowdown above this limit: against eager, or with --fx-baseline against "
        "that run, relative to eager. Example: --fx-baseline main.json --fx-fail-slower 5%%",
    ),
    PluginOption(
        "draw", None, _folder, "DIR",
        "Write interactive pages into this folder: the program of each model, and for each pass that changes it, the "
        "program before and after, with the errors of its nodes. Example: --fx-draw drawings",
    ),
    PluginOption(
        "report", None, _folder, "DIR",
        "Write the results of the run into this folder: a page for browsers (index.html), which needs no network, and "
        "the raw rows (rows.jsonl), with the earlier runs in the same folder. Example: --fx-report report",
    ),
    PluginOption(
        "timeout", None, _seconds, "SECONDS",
        "Fail a test of a pass or a model that runs longer, or under --fx-check a pass that takes longer on one "
        "program (default: any time; with --fx-isolate 600, and 60 for a program). Without "
        "--fx-isolate a test is interrupted at its next step of Python, and not while it waits outside of Python. "
        "Example: --fx-timeout 60",
    ),
    PluginOption(
        "memory-limit", None, _positive, "MIB",
        "With --fx-isolate, fail a test whose process holds this many MiB more than pytest did when the process was "
        "started (default: most of the machine's free memory). Example: --fx-isolate --fx-memory-limit 4096",
    ),
)  # fmt: skip

SWITCHES = {
    "no-timing": "Take no times, for a faster answer on correctness. Example: --fx-model all --fx-no-timing",
    "strict": "Also fail a program that is right only with a waiver, or not judged because nothing was compared. With "
    "--fx-baseline, also fail a pass that changes less than in that run, and a timing that the baseline lacks, or that "
    "is too noisy to decide --fx-fail-slower. Example: --fx-model all --fx-strict",
    "require-change": "Fail a pass of --fx-pass that changes nothing in a model: a fusion that no longer matches, say. "
    "Example: --fx-model resnet50 --fx-pass mypackage.passes:fuse_gelu --fx-require-change",
    "isolate": "Run tests in a child process, which is replaced when one of them ends it, hangs or takes too much "
    "memory: that test fails with the reason, and the others go on. "
    "Example: --fx-model all --fx-isolate --fx-timeout 60",
    "annotate": "Report to a GitHub pull request what passes did: print an annotation for each failure, at the user's "
    "line, and write a summary in Markdown to the file that GITHUB_STEP_SUMMARY names, or .pytest_fx/summary.md. "
    "Example: --fx-model all --fx-annotate --fx-report report",
    "estimate": "Show estimated times beside the measured ones, on the CPU: this machine is measured in a quarter of a "
    "minute the first time, and each kernel once for its sizes; both are kept in .pytest_fx. "
    "Example: --fx-model resnet50 --fx-estimate",
    "inference": "Judge passes as passes for inference: without gradients, and on random programs (--fx-check) in "
    "evaluation mode alone. Example: --fx-check mypackage.passes:fold_scales --fx-inference",
    "orders": "Run some of the passes of each --fx-check a,b,c in any order on each random program, and name the pair "
    "that breaks a law which each of them keeps alone. Example: --fx-check fuse-conv-bn,remove-dead-code --fx-orders",
    "tables-afresh": "Let --fx-tables measure every row again.",
}
"""Flags without a value, with their help; true or false in the ini file."""
OF_RUNS = (
    *("against", "annotate", "baseline", "draw", "isolate", "layer", "report", "save-answers", "tables"),
    "tables-afresh",
)
"""Flags that apply to a whole run, so that no marker can have them."""
FLAGS = {
    **{option.keyword: option.flag for option in TABLE},
    **{keyword_of(flag): flag for flag in (*SWITCHES, "tables")},
}
"""The flags of all options, by their names in Python."""
