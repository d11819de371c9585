"""``make verdicts``: what the harness says of passes and models that were once judged wrongly, in results/verdicts.md.

A case is a pass on a model, or a run of pytest, and the verdict that is right: *red*, with the law that is broken or
what is said, or *green*. Each one was the other way round, or said nothing, at some time.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fx.interop import adapt
from fx.passes import FuseConvBN, contract_of
from pytest_fx import NothingJudged, check_pass
from pytest_fx.harness.application import Application, may_change
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.subject import GivenProgram, Subject
from pytest_fx.laws import affordable, broken_laws, choose_laws
from pytest_fx.storage.baseline import describe
from pytest_fx.storage.records import describe_machine, write_atomically

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pytest_fx"))
formula_passes: Any = importlib.import_module("formula_passes")
"""Passes that match a formula and leave one thing of it unchecked."""
RESULT = Path("results/verdicts.md")


@dataclass(frozen=True, slots=True)
class Case:
    """One pass, or one run, and what is right to say of it."""

    item: str
    """What it is about, in a few words."""
    says: str
    """The pass, the model or the command."""
    expected: str
    """``green``, or ``red`` and what is to be told."""
    judge: Callable[[], str]
    """Asks the harness."""

    def is_right(self, told: str) -> bool:
        """Whether that was told: several laws may be broken, of which the expected one must be among them."""
        laws = told.removeprefix("red: ").split(", ")
        return told == self.expected or self.expected.removeprefix("red: ") in laws


CASES: list[Case] = []


def case(item: str, says: str, expected: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Enter a case."""

    def enter(judge: Callable[[], str]) -> Callable[[], str]:
        CASES.append(Case(item, says, expected, judge))
        return judge

    return enter


def verdict(subject: Subject, pass_: Any) -> str:
    """What the suite says of a pass on a model."""
    application = Application(subject, pass_, contract=contract_of(pass_))
    if application.refusal is not None:
        return "refused"
    violations = broken_laws(affordable(choose_laws((), (), may_change(pass_)), application), application)
    return "red: " + ", ".join(violation.law for violation in violations) if violations else "green"


def model(dtype: torch.dtype = torch.float32) -> Subject:
    """A convolution with its batch norm, as a model of the suite."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    module[1].running_var.uniform_(0.5, 2)
    images = torch.randn(2, 3, 8, 8)
    return Subject("conv_bn", module, lambda draw: Arguments((images + draw,)), working_dtype=dtype)


def program(forward: Callable[..., Any], *inputs: torch.Tensor, mode: str = "eval") -> Subject:
    """A module with ``forward``, as the search holds one."""
    made = type("Program", (nn.Module,), {"forward": forward})
    return Subject.of(GivenProgram(made, Arguments(inputs)), mode)


def found(pass_: Any, **options: Any) -> str:
    """What ``check_pass`` says of a pass on random programs."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            check_pass(pass_, max_examples=200, seed=0, folder=Path(folder), **options)
        except NothingJudged:
            return "nothing judged"
        except AssertionError as violation:
            return f"red: {getattr(violation, 'law', '')}"
    return "green"


def said(source: str, *arguments: str) -> str:
    """What pytest prints in a folder with ``mine.py``."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "mine.py").write_text(source)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *arguments]
        root = str(Path(__file__).resolve().parents[2])
        ran = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": root}, check=False
        )
        return ran.stdout + ran.stderr


def says(text: str, *parts: str) -> str:
    """``said`` if each of the parts is in the text, or what is missing."""
    missing = [part for part in parts if part not in " ".join(text.split())]
    return "said" if not missing else f"not said: {missing[0]}"


# Red that was green.


@case("stale code", "edits the graph and does not recompile", "red: code and graph agree")
def stale() -> str:
    def edit(graph_module: Any) -> None:
        for node in graph_module.graph.find_nodes(op="call_module", target="2"):
            node.replace_all_uses_with(node.args[0])
            graph_module.graph.erase_node(node)

    return verdict(model(), edit)


@case("mode", "leaves the program in training mode", "red: mode")
def other_mode() -> str:
    return verdict(model(), lambda graph_module: graph_module.train())


def _on_first(act: Callable[[Any], Any]) -> str:
    def change(graph_module: Any) -> None:
        act(graph_module.get_submodule("1"))

    return verdict(model(), change)


@case("the original's modules", "adds a hook to a layer of the original", "red: original untouched")
def hook() -> str:
    return _on_first(lambda layer: layer.register_forward_pre_hook(lambda module, args: None))


@case("the original's modules", "changes a setting of a layer of the original", "red: original untouched")
def setting() -> str:
    return _on_first(lambda layer: setattr(layer, "momentum", 0.5))


@case("the original's modules", "gives a layer of the original a list", "red: original untouched")
def a_list() -> str:
    return _on_first(lambda layer: setattr(layer, "seen", [1]))


@case("the original's modules", "freezes a parameter of the original", "red: original untouched")
def freeze() -> str:
    return _on_first(lambda layer: layer.weight.requires_grad_(False))


@case("adapted passes", "a pass for torch.fx that returns a number", "red: refusal")
def no_program() -> str:
    def count(graph_module: torch.fx.GraphModule) -> Any:
        return len(graph_module.graph.nodes)

    return verdict(model(), adapt(count))


def _checked(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    assert x.shape[0] > 1, f"one sample is not enough, got {x.shape[0]}"
    return x - x.mean(0)


def _drop_checks(graph_module: Any) -> Any:
    graph = graph_module.graph
    for node in reversed(list(graph.nodes)):
        if not node.users and node.op == "call_function" and node is not graph.output_node():
            graph.erase_node(node)
    graph_module.recompile()
    return graph_module


@case("checks", "erases a check of the program", "red: checks")
def without_checks() -> str:
    return verdict(program(_checked, torch.randn(2, 3)), _drop_checks)


@case("checks", "erases checks, on random programs", "red: checks")
def without_checks_found() -> str:
    def erase_checks(graph_module: Any) -> Any:
        for node in graph_module.graph.find_nodes(op="call_function", target=torch._assert):
            graph_module.graph.erase_node(node)
        graph_module.recompile()
        return graph_module

    return found(erase_checks)


def _formula(name: str, pass_: Any) -> None:
    @case("formulas", f"a match that leaves unchecked: {name}", "red")
    def unchecked() -> str:
        return found(pass_, min_changed=0).partition(":")[0]


for _name, _pass in formula_passes.WRONG.items():
    _formula(_name, _pass)


_WITHOUT_GRADIENTS = """
import torch

def quiet(graph_module):
    torch.set_grad_enabled(False)
    torch.relu = torch.nn.functional.gelu
    torch.set_default_dtype(torch.float64)
"""


@case("the process", "turns gradients off and patches torch", "said")
def process() -> str:
    text = said(_WITHOUT_GRADIENTS, "--fx-model", "mlp", "--fx-pass", "mine:quiet", "--fx-no-timing")
    return says(text, "law 'process untouched'", "gradients are off")


@case(
    "several laws", "scales the original's weights in place: wrong numbers and a changed original", "red: contract, …"
)
def both() -> str:
    def scale(graph_module: Any) -> None:
        with torch.no_grad():
            for parameter in graph_module.parameters():
                parameter.mul_(1.5)

    told = verdict(model(), scale)
    return "red: contract, …" if told.startswith("red: contract") and "original untouched" in told else told


# Green that was red.


@case("float64", "fuses batch norms of a model in float64", "green")
def in_float64() -> str:
    return verdict(model(torch.float64), FuseConvBN())


@case("float64", "scales by 1.0001 in float64", "red: contract")
def wrong_in_float64() -> str:
    def scale(graph_module: Any) -> None:
        output = graph_module.graph.output_node()
        with graph_module.graph.inserting_before(output):
            output.args = (graph_module.graph.call_function(torch.mul, (output.args[0], 1.0001)),)
        graph_module.recompile()

    told = verdict(model(torch.float64), scale)
    return "red: contract" if told.startswith("red: contract") else told


@case("torch.fx", "torch.fx's own fuse, on random programs", "green")
def theirs() -> str:
    from torch.fx.experimental.optimization import remove_dropout

    return found(adapt(remove_dropout), min_changed=0)


@case("torch.fx", "answers in the layout of MKL-DNN", "green")
def mkldnn() -> str:
    return verdict(program(lambda self, x: x.to_mkldnn(), torch.randn(2, 3)), lambda graph_module: None)


@case("nothing to judge", "a pass that never fires", "nothing judged")
def never() -> str:
    def never_fires(graph_module: Any) -> None:
        """Looks for what there is nowhere."""

    return found(never_fires)


@case("overflow", "another order of arithmetic before a cast to float16", "green")
def overflow() -> str:
    def divide_first(graph_module: Any) -> None:
        (scaled,) = graph_module.graph.find_nodes(op="call_function", target=torch.mul)
        (halved,) = graph_module.graph.find_nodes(op="call_function", target=torch.div)
        scaled.args = (scaled.args[0], 30.0)
        halved.replace_all_uses_with(halved.args[0])
        graph_module.graph.erase_node(halved)
        graph_module.recompile()

    given = torch.tensor([1.0, 2.0, 2000.0])
    return verdict(program(lambda self, x: torch.div(torch.mul(x, 60.0).half(), 2.0), given), divide_first)


@case("small numbers", "outputs of 1e-10, wrong by a tenth", "red: contract")
def small() -> str:
    def wrong(graph_module: Any) -> None:
        (scaled,) = graph_module.graph.find_nodes(op="call_function", target=torch.mul)
        scaled.args = (scaled.args[0], 1.1e-10)
        graph_module.recompile()

    told = verdict(program(lambda self, x: torch.mul(x, 1e-10), torch.randn(4, 3)), wrong)
    return "red: contract" if told.startswith("red: contract") else told


# Said rightly.

_MINE = """
import torch
from torch import nn
from fx.passes import Edit, RewritingPass

def pair():
    return nn.Linear(4, 4), torch.ones(3, 4)

def mixed():
    return nn.Bilinear(4, 4, 2), (torch.ones(3, 4), torch.ones(3, 4))

def odd():
    class Odd(nn.Module):
        def forward(self, x, y):
            return x.sum() + y.sum()
    return Odd(), (torch.ones(3, 4), torch.ones(2, 4))

def broken():
    raise ValueError("no weights today")

def nothing(graph_module):
    return None

class Cut(RewritingPass):
    def rewrites(self, graph_module):
        output = graph_module.graph.output_node()
        yield Edit("the output is cut off", output.source)
        with graph_module.graph.inserting_before(output):
            output.args = (graph_module.graph.call_function(torch.detach, (output.args[0],)),)
"""


@case("batches", "--fx-batch 1,8 on a user's pair resizes its inputs", "said")
def batches() -> str:
    options = ("--fx-model", "mine:pair", "--fx-batch", "1,8", "--fx-no-timing", "--fx-pass", "mine:nothing")
    return says(said(_MINE, *options), "mine:pair, batch 1", "mine:pair, batch 8")


@case("batches", "--fx-batch 8 where inputs share no batch is refused", "said")
def no_batch() -> str:
    text = said(_MINE, "--fx-model", "mine:odd", "--fx-batch", "8", "--fx-no-timing")
    return says(text, "cannot have 8 sample(s)", "share no first size")


@case("no change", "a pass that changes nothing has a row that says so", "said")
def unchanged() -> str:
    options = ("--fx-model", "mine:pair", "--fx-pass", "mine:nothing", "--fx-no-timing")
    return says(said(_MINE, *options), "changes nothing")


@case("gradients", "names the edit, the node, and leaves a test", "said")
def gradients() -> str:
    text = said(_MINE, "--fx-model", "mine:pair", "--fx-pass", "mine:Cut", "--fx-no-timing", "-k", "contract")
    return says(text, "law 'gradients'", "the output is cut off", "whose gradient differs", "that shows it alone")


@case("factories", "a factory that raises is told once, with the user's line", "said")
def factory() -> str:
    text = said(_MINE, "--fx-model", "mine:broken", "--fx-no-timing")
    return (
        says(text, "no weights today", "mine.py:24", "1 ") if text.count("ValueError: no weights today") < 4 else text
    )


@case("names", "a misspelt module gets the nearest", "said")
def misspelt() -> str:
    return says(said(_MINE, "--fx-model", "minne:pair"), "did you mean")


@case("names", "an unknown pass", "said")
def unknown() -> str:
    return says(said(_MINE, "--fx-model", "mine:pair", "--fx-pass", "fuse-conv-nb"), "did you mean 'fuse-conv-bn'")


def table() -> tuple[str, int]:
    """The page, and how many verdicts are wrong."""
    machine = describe(describe_machine())
    rows = [(one, one.judge()) for one in CASES]
    wrong = sum(not one.is_right(told) for one, told in rows)
    lines = [
        "# Verdicts",
        "",
        f"`make verdicts` on {machine}. What the harness says of passes and models that were once judged wrongly.",
        "",
        f"**{len(rows) - wrong} of {len(rows)} verdicts are right.**",
        "",
        "| about | case | right | found |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {one.item} | {one.says} | {one.expected} | {told if one.is_right(told) else f'**{told}**'} |"
        for one, told in rows
    ]
    return "\n".join(lines) + "\n", wrong


def main() -> int:
    """Write the page; 1 if a verdict is wrong."""
    text, wrong = table()
    print(text)
    write_atomically(RESULT, text)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
