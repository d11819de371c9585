"""Passes on models and on random programs, judged in this process."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import formula_passes  # pyright: ignore[reportMissingImports]
import hypothesis
import torch
import torch.fx
from torch import nn
from torch.fx._symbolic_trace import _assert_is_none
from torch.fx.experimental.optimization import fuse, remove_dropout

import fx
from fx.interop import adapt
from fx.interop.pass_library import is_for_torch
from fx.operators.effects import effect_of
from fx.passes import FuseConvBN, close, contract_of
from pytest_fx import LawViolation, NothingJudged, check_pass
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun, may_change, with_data
from pytest_fx.harness.subject import GivenProgram, Subject
from pytest_fx.laws import affordable, broken_laws, choose_laws, law_called
from pytest_fx.search.blame import Blame

from . import case


def verdict(subject: Subject, pass_: Any) -> str:
    """What the suite says of a pass on a model."""
    pass_run = PassRun(subject, pass_, contract=contract_of(pass_))
    if pass_run.refusal is not None:
        return "unjudged"
    violations = broken_laws(affordable(choose_laws((), (), may_change(pass_)), pass_run), pass_run)
    blame = Blame(pass_)
    due = [found.law for found in violations if blame.caused_by_pass(law_called(found.law), pass_run)]
    return "red: " + ", ".join(due) if due else "unjudged" if violations else "green"


def model(dtype: torch.dtype = torch.float32) -> Subject:
    """A convolution with its batch norm, as a model of the suite."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4)
    norm.weight.data.uniform_(0.5, 2)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU())
    images = torch.randn(2, 3, 8, 8)
    return Subject("conv_bn", module, lambda input_set: Arguments((images + input_set,)), working_dtype=dtype)


def program(forward: Callable[..., Any], *inputs: torch.Tensor, mode: str = "eval") -> Subject:
    """A module with ``forward``, as the search holds one."""
    made = type("Program", (nn.Module,), {"forward": forward})
    return Subject.of(GivenProgram(made, Arguments(inputs)), mode)


def found(pass_: Any, **options: Any) -> str:
    """What ``check_pass`` says of a pass on random programs."""
    options = {"settings": hypothesis.settings(database=None), "max_examples": 200, "seed": 0, **options}
    with tempfile.TemporaryDirectory() as folder:
        try:
            check_pass(pass_, folder=Path(folder), **options)
        except NothingJudged:
            return "nothing judged"
        except LawViolation as violation:
            return f"red: {violation.law}"
    return "green"


def nothing(graph_module: Any) -> None:
    """Change nothing."""


@case("stale code", "edits the graph and does not recompile", "red: code and graph agree")
def _() -> str:
    return verdict(model(), _relu_as_function)


@case("stale code", "edits the graph and recompiles", "green")
def _() -> str:
    def edit(graph_module: Any) -> None:
        _relu_as_function(graph_module)
        graph_module.recompile()

    return verdict(model(), edit)


def _relu_as_function(graph_module: Any) -> None:
    (node,) = graph_module.graph.find_nodes(op="call_module", target="2")
    node.op, node.target = "call_function", torch.relu


def _enter_stale_for_torch(says: str, pass_: Callable[[torch.fx.GraphModule], Any], right: str) -> None:
    @case("stale code", f"a pass for torch.fx that {says}", right)
    def _() -> str:
        return verdict(model(), adapt(pass_))


def _edits_a_copy(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    copied = copy.deepcopy(graph_module)
    _relu_as_function(copied)
    return copied


def _recompiles(graph_module: torch.fx.GraphModule) -> None:
    _relu_as_function(graph_module)
    graph_module.recompile()


_enter_stale_for_torch("edits the graph and does not recompile", _relu_as_function, "red: code and graph agree")
_enter_stale_for_torch("edits a copy and does not recompile", _edits_a_copy, "red: code and graph agree")
_enter_stale_for_torch("edits the graph and recompiles", _recompiles, "green")


@case("mode", "leaves the program in training mode", "red: mode")
def _() -> str:
    return verdict(model(), lambda graph_module: graph_module.train())


@case("mode", "leaves the program in the mode in which it was", "green")
def _() -> str:
    return verdict(model(), lambda graph_module: graph_module.train().eval())


_CHANGES: dict[str, Callable[[Any], Any]] = {
    "adds a hook to a layer": lambda layer: layer.register_forward_pre_hook(lambda module, args: None),
    "changes a setting of a layer": lambda layer: setattr(layer, "momentum", 0.5),
    "gives a layer a list": lambda layer: setattr(layer, "seen", [1]),
    "gives a layer a dict": lambda layer: setattr(layer, "seen", {"images": 1}),
    "freezes a parameter": lambda layer: layer.weight.requires_grad_(False),
}


def _enter_change(says: str, act: Callable[[Any], Any]) -> None:
    @case("the original's modules", f"{says} of the original", "red: original untouched")
    def _() -> str:
        def change(graph_module: Any) -> None:
            act(graph_module.get_submodule("1"))

        return verdict(model(), change)


for _says, _act in _CHANGES.items():
    _enter_change(_says, _act)


@case("the original's modules", "gives a copy of a layer a list", "green")
def _() -> str:
    def copied(graph_module: Any) -> None:
        layer = copy.deepcopy(graph_module.get_submodule("1"))
        layer.seen = [1]
        setattr(graph_module, "1", layer)

    return verdict(model(), copied)


@case("adapted passes", "a pass for torch.fx that returns a number", "red: refusal")
def _() -> str:
    def count(graph_module: torch.fx.GraphModule) -> Any:
        return len(graph_module.graph.nodes)

    return verdict(model(), adapt(count))


@case("adapted passes", "a pass for torch.fx that returns the program", "green")
def _() -> str:
    def give_back(graph_module: torch.fx.GraphModule) -> Any:
        return graph_module

    return verdict(model(), adapt(give_back))


def _checked(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    assert x.shape[0] > 1, f"one sample is not enough, got {x.shape[0]}"
    return x - x.mean(0)


def _is_check(node: Any) -> bool:
    effect = effect_of(node)
    return effect is not None and effect.kind == "check"


def _erase_checks(graph_module: Any) -> None:
    graph = graph_module.graph
    for node in reversed(list(graph.nodes)):
        if not node.users and node.op == "call_function" and _is_check(node):
            graph.erase_node(node)
    graph_module.recompile()


@case("checks", "erases a check of the program", "red: checks")
def _() -> str:
    return verdict(program(_checked, torch.randn(2, 3)), _erase_checks)


@case("checks", "erases checks, on random programs", "red: checks")
def _() -> str:
    return found(_erase_checks)


@case("checks", "computes a difference otherwise and keeps the check", "green")
def _() -> str:
    def other_difference(graph_module: Any) -> None:
        for node in graph_module.graph.find_nodes(op="call_function"):
            if getattr(node.target, "__name__", "") == "sub":
                node.target = torch.sub
        graph_module.recompile()

    return verdict(program(_checked, torch.randn(2, 3)), other_difference)


def _enter_formulas(right: str, passes: dict[str, Any], says: str) -> None:
    for name, pass_ in passes.items():

        @case("formulas", f"{says}: {name}", right)
        def _(pass_: Any = pass_) -> str:
            return found(pass_, min_changed=0, max_examples=1600 if right == "red" else 400)


_enter_formulas("red", formula_passes.WRONG, "a match that leaves unchecked")
_enter_formulas("green", formula_passes.RIGHT, "a match that checks all")


@case("the process", "sets the default dtype", "red: process untouched")
def _() -> str:
    return verdict(model(), lambda graph_module: torch.set_default_dtype(torch.float64))


@case("the process", "computes without gradients, and turns them on again", "green")
def _() -> str:
    def without_gradients(graph_module: Any) -> None:
        with torch.no_grad():
            torch.ones(2).sum()

    return verdict(model(), without_gradients)


@case(
    "several laws",
    "scales the original's weights: wrong numbers, another original",
    "red: contract, original untouched",
)
def _() -> str:
    def scale(graph_module: Any) -> None:
        with torch.no_grad():
            for parameter in graph_module.parameters():
                parameter.mul_(1.5)

    return verdict(model(), scale)


@case("float64", "fuses batch norms of a model in float64", "green")
def _() -> str:
    return verdict(model(torch.float64), FuseConvBN())


@case("float64", "scales by 1.0001 in float64", "red: contract")
def _() -> str:
    def scale(graph_module: Any) -> None:
        output = graph_module.graph.output_node()
        with graph_module.graph.inserting_before(output):
            output.args = (graph_module.graph.call_function(torch.mul, (output.args[0], 1.0001)),)
        graph_module.recompile()

    return verdict(model(torch.float64), scale)


def _sets_an_item(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    y[0] = 2
    return y


def _enter_theirs(pass_: Any, right: str) -> None:
    @case("torch.fx", f"its own {pass_.__name__}, on random programs in evaluation mode", right)
    def _() -> str:
        return found(adapt(pass_), min_changed=0, modes=("eval",))

    @case("torch.fx", f"its own {pass_.__name__}, where an element is set", "unjudged")
    def _() -> str:
        return verdict(program(_sets_an_item, torch.randn(2, 3)), adapt(pass_))


_enter_theirs(remove_dropout, "green")
_enter_theirs(fuse, "red")  # it forgets second calls of a layer, and folds norms of more features than a layer has


@case("torch.fx", "a check for None with a message", "green")
def _() -> str:
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y", default_value=None)
    graph.call_function(_assert_is_none, (y,), {"msg": "y must be None"})
    graph.output(graph.call_function(torch.relu, (x,)))
    given = torch.fx.GraphModule(nn.Module(), graph)
    return verdict(Subject.of(GivenProgram(lambda: given, Arguments((torch.randn(2, 3),))), "eval"), nothing)


@case("torch.fx", "moves an input behind a computation", "green")
def _() -> str:
    def moves_the_input(graph_module: torch.fx.GraphModule) -> None:
        _, other, doubled, *_ = graph_module.graph.nodes
        doubled.append(other)
        graph_module.recompile()

    return verdict(program(lambda self, x, y: x * 2 + y, torch.ones(2), torch.ones(2)), adapt(moves_the_input))


class _Calibrated:
    """A pass for torch.fx that wants data, and is written with names that only this class imports."""

    def __init__(self, samples: int = 0) -> None:
        self.samples = samples

    def with_data(self, data: Any) -> _Calibrated:
        return _Calibrated(len(list(data)))

    def __call__(self, graph_module: Any) -> Any:
        from torch.fx import GraphModule

        assert isinstance(graph_module, GraphModule), "written for torch.fx"
        assert self.samples, "no data was given"
        return graph_module


@case("torch.fx", "a class for torch.fx, by a local import, that is given data", "green")
def _() -> str:
    made = with_data(adapt(_Calibrated()), lambda: [Arguments((torch.ones(2, 3, 8, 8),))])
    return verdict(model(), made) if is_for_torch(_Calibrated) else "taken for one of ours"


@case("torch.fx", "answers in the layout of MKL-DNN", "green")
def _() -> str:
    return verdict(program(lambda self, x: x.to_mkldnn(), torch.randn(2, 3)), nothing)


@case("torch.fx", "answers dense instead of in the layout of MKL-DNN", "red: dtype")
def _() -> str:
    def without_layout(graph_module: Any) -> None:
        (node,) = graph_module.graph.find_nodes(op="call_method", target="to_mkldnn")
        node.replace_all_uses_with(node.args[0])
        graph_module.graph.erase_node(node)
        graph_module.recompile()

    return verdict(program(lambda self, x: x.relu().to_mkldnn(), torch.randn(2, 3)), without_layout)


@case("nothing to judge", "a pass that never matches", "nothing judged")
def _() -> str:
    return found(nothing, min_changed=5)


def _division_first(times: float) -> Callable[[Any], None]:
    """A pass that divides before it casts, and multiplies by ``times`` for it."""

    def divide_first(graph_module: Any) -> None:
        (scaled,) = graph_module.graph.find_nodes(op="call_function", target=torch.mul)
        (halved,) = graph_module.graph.find_nodes(op="call_function", target=torch.div)
        scaled.args = (scaled.args[0], times)
        halved.replace_all_uses_with(halved.args[0])
        graph_module.graph.erase_node(halved)
        graph_module.recompile()

    return divide_first


def _overflowing() -> Subject:
    given = torch.tensor([1.0, 2.0, 2000.0])
    return program(lambda self, x: torch.div(torch.mul(x, 60.0).half(), 2.0), given)


@case("overflow", "another order of arithmetic before a cast to float16, which overflows in eager", "green")
def _() -> str:
    return verdict(_overflowing(), _division_first(30.0))


@case("overflow", "the same, and what does not overflow is wrong", "red: contract")
def _() -> str:
    return verdict(_overflowing(), _division_first(31.0))


def _enter_small(says: str, factor: float, right: str) -> None:
    @case("small numbers", f"outputs of 1e-10, {says}", right)
    def _() -> str:
        def scale(graph_module: Any) -> None:
            (scaled,) = graph_module.graph.find_nodes(op="call_function", target=torch.mul)
            scaled.args = (scaled.args[0], factor)
            graph_module.recompile()

        return verdict(program(lambda self, x: torch.mul(x, 1e-10), torch.randn(4, 3)), scale)


_enter_small("wrong by a tenth", 1.1e-10, "red: contract")
_enter_small("wrong in the last digits of float32", 1.0000001e-10, "green")


class _Named(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] != y.shape[-1]:
            raise ValueError(f"{x.shape[-1]} columns of x, {y.shape[-1]:>5} of y: {list(y.shape)}")
        return x + y


@case("captured again", "checks whose messages tell values", "green")
def _() -> str:
    captured = fx.symbolic_trace(_Named())
    if any("Proxy" in str(node.args) for node in captured.graph.nodes):
        return "a message with the text of a Proxy"
    inputs = Arguments((torch.ones(2, 3), torch.ones(2, 3)))
    return verdict(Subject.of(GivenProgram(lambda: fx.symbolic_trace(captured), inputs), "eval"), nothing)


def _deep() -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 8), (8, 8), (8, 8)):
        norm = nn.BatchNorm2d(outputs)
        norm.running_var.uniform_(0.01, 0.1)
        norm.running_mean.normal_()
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), norm, nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 64, 40)).eval()


def _given(change: Callable[[Any], Any]) -> str:
    """What the suite says of a program that was made of a model elsewhere, in float32 alone."""
    module = _deep()
    made = copy.deepcopy(module)
    with torch.no_grad():
        change(made)
    images = torch.randn(2, 3, 8, 8)
    pass_run = PassRun.given(Subject("deep", module, lambda input_set: Arguments((images + input_set,))), made, close)
    violations = broken_laws(affordable(choose_laws((), (), ()), pass_run), pass_run)
    return f"red: {violations[0].law}" if violations else "green"


def _fold_without_eps(module: Any) -> None:
    conv, norm = module[0], module[1]
    factor = norm.weight / norm.running_var.sqrt()
    conv.weight.mul_(factor.view(-1, 1, 1, 1))
    conv.bias.sub_(norm.running_mean).mul_(factor).add_(norm.bias)
    module[1] = nn.Identity()


def _halve_once(module: Any) -> None:
    module[3].register_forward_pre_hook(lambda layer, given: (given[0].bfloat16().float(),))


_GIVEN: dict[str, tuple[Callable[[Any], Any], str]] = {
    "with outputs times 1.001": (lambda made: [one.mul_(1.001) for one in made[-1].parameters()], "red: contract"),
    "with another eps in one batch norm": (lambda made: setattr(made[1], "eps", 1e-3), "red: contract"),
    "with a batch norm folded without its eps": (_fold_without_eps, "red: contract"),
    "with one value rounded to bfloat16 on its way": (_halve_once, "red: contract"),
    "in channels last": (lambda made: made.to(memory_format=torch.channels_last), "green"),
    "with its batch norms folded": (lambda made: [_fold(made, place) for place in (0, 3, 6)], "green"),
}


def _fold(module: Any, place: int) -> None:
    module[place] = nn.utils.fuse_conv_bn_eval(module[place], module[place + 1])
    module[place + 1] = nn.Identity()


def _enter_given(says: str, change: Callable[[Any], Any], right: str) -> None:
    @case("the bound in float32", f"a program made elsewhere, {says}", right)
    def _() -> str:
        return _given(change)


for _says, (_change_of_given, _right_of_given) in _GIVEN.items():
    _enter_given(_says, _change_of_given, _right_of_given)


def _detection(wrong: bool) -> str:
    """Boxes behind a threshold that one score meets but for rounding; eager's own is on one side or the other."""
    generator = torch.Generator().manual_seed(0)
    boxes, scores = torch.rand(64, 4, generator=generator) * 600, torch.rand(64, generator=generator)
    scores[5] = 0.5

    def detect(self: Any, boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        kept = (scores * 3.0 / 3.0 - 0.5).mul(1e6).round().ge(0)
        return torch.where(kept[:, None], boxes, torch.zeros_like(boxes))

    def other(self: Any, boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        found = torch.where((scores - 0.5).mul(1e6).round().ge(0)[:, None], boxes, torch.zeros_like(boxes))
        return torch.cat([found[:9], found[9:10] + 187.0, found[10:]]) if wrong else found

    module, made = (type("Detector", (nn.Module,), {"forward": forward})() for forward in (detect, other))
    subject = Subject("detector", module, lambda input_set: Arguments((boxes + input_set, scores)))
    pass_run = PassRun.given(subject, made, close)
    violations = broken_laws([law_called("contract")], pass_run)
    return f"red: {violations[0].law}" if violations else "green"


@case("the bound in float32", "a box of its own is wrong, beside one that rounding decides", "red: contract")
def _() -> str:
    return _detection(wrong=True)


@case("the bound in float32", "one box that rounding decides", "green")
def _() -> str:
    return _detection(wrong=False)


def _folded(graph_module: Any, into: Callable[[nn.Module, torch.Tensor, torch.Tensor], Any]) -> None:
    """Fold the batch norm of ``model``, whose module stays where it is; ``into`` makes the layer, or edits it."""
    conv, norm = graph_module.get_submodule("0"), graph_module.get_submodule("1")
    factor = (norm.weight * torch.rsqrt(norm.running_var + norm.eps)).detach()
    weight = conv.weight.detach() * factor.view(-1, 1, 1, 1)
    layer = into(conv, weight, ((conv.bias - norm.running_mean) * factor + norm.bias).detach())
    if layer is not None:
        setattr(graph_module, "0", layer)
    (node,) = graph_module.graph.find_nodes(op="call_module", target="1")
    node.replace_all_uses_with(node.args[0])
    graph_module.graph.erase_node(node)
    graph_module.recompile()


def _with_parameters(layer: Any, weight: torch.Tensor, bias: torch.Tensor) -> None:
    layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)


def _in_place(layer: Any, weight: torch.Tensor, bias: torch.Tensor) -> None:
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)


def _copied(layer: Any, weight: torch.Tensor, bias: torch.Tensor) -> Any:
    layer = copy.deepcopy(layer)
    _with_parameters(layer, weight, bias)
    return layer


def _enter_folding(says: str, into: Callable[..., Any], right: str, *may_change: str) -> None:
    @case("folding", says, right)
    def _() -> str:
        def fold(graph_module: Any) -> None:
            _folded(graph_module, into)

        fold.may_change = may_change  # type: ignore[attr-defined]
        return verdict(model(), fold)


_enter_folding("a batch norm into a copy of its layer, and leaves the dead module", _copied, "green")
_enter_folding("into new parameters of the original's layer", _with_parameters, "red: original untouched")
_enter_folding("into new parameters of a layer that it may use up", _with_parameters, "green", "tensors")
_enter_folding("into the original's parameters", _in_place, "red: original untouched")
_enter_folding("into parameters that it may use up", _in_place, "green", "tensors")


@case("folding", "a batch norm by fuse_conv_bn_eval, set back", "green")
def _() -> str:
    def fold(graph_module: Any) -> None:
        norm = graph_module.get_submodule("1")
        _folded(graph_module, lambda layer, *_: nn.utils.fuse_conv_bn_eval(layer, norm))

    return verdict(model(), fold)


class _Gained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.gain = nn.Linear(4, 4), nn.Parameter(torch.rand(4) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.mul(self.layer(x), self.gain))


def _enter_gain(says: str, is_used_still: bool, right: str) -> None:
    @case("folding", says, right)
    def _() -> str:
        torch.manual_seed(0)
        module, images = _Gained(), torch.randn(5, 4)

        def fold(graph_module: Any) -> None:
            layer, gain = graph_module.layer, graph_module.gain.detach()
            made = nn.Linear(4, 4)
            made.weight = nn.Parameter(layer.weight.detach() * gain[:, None])
            made.bias = nn.Parameter(layer.bias.detach() * gain)
            graph_module.layer = made
            (node,) = graph_module.graph.find_nodes(op="call_function", target=torch.mul)
            read = node.args[1]
            if is_used_still:
                with graph_module.graph.inserting_before(node):
                    node.args = (node.args[0], graph_module.graph.call_function(torch.ones_like, (read,)))
            else:
                node.replace_all_uses_with(node.args[0])
                graph_module.graph.erase_node(node)
                graph_module.graph.erase_node(read)
            graph_module.recompile()

        return verdict(Subject("gained", module, lambda input_set: Arguments((images + input_set,))), fold)


_enter_gain("a gain into a linear layer", False, "green")
_enter_gain("a gain into a linear layer, and reads it all the same", True, "red: gradients")


def _enter_small_gradient(says: str, small: Callable[[Any, Any], Any], right: str) -> None:
    @case("gradients by element", says, right)
    def _() -> str:
        def apart(graph_module: Any) -> None:
            output = graph_module.graph.output_node()
            given, graph = output.args[0], graph_module.graph
            with graph.inserting_before(output):
                first, rest = (graph.call_function(torch.narrow, (given, -1, start, 1)) for start in (0, 1))
                output.args = (graph.call_function(torch.cat, ([small(graph, first), rest], -1)),)
            graph_module.recompile()

        scale = torch.tensor([1e-3, 1e6])
        return verdict(program(lambda self, x, scale: torch.mul(x, scale), torch.randn(3, 2), scale), apart)


_enter_small_gradient(
    "lost for elements that are small beside others",
    lambda graph, first: graph.call_method("detach", (first,)),
    "red: gradients",
)
_enter_small_gradient("kept for them", lambda graph, first: graph.call_function(torch.clone, (first,)), "green")


def _enter_softmax(says: str, dtype: torch.dtype, right: str) -> None:
    @case("softmax in a model in float16", says, right)
    def _() -> str:
        torch.manual_seed(0)
        first, second = nn.Linear(8, 8), nn.Linear(8, 8)
        module, images = nn.Sequential(first, nn.Softmax(-1), second), torch.randn(6, 8)

        def cast(graph_module: Any) -> None:
            (node,) = graph_module.graph.find_nodes(op="call_module", target="1")
            with graph_module.graph.inserting_before(node):
                cast = graph_module.graph.call_method("to", (node.args[0], dtype))
                made = graph_module.graph.call_function(torch.softmax, (cast, -1))
                back = graph_module.graph.call_method("type_as", (made, node.args[0]))
            node.replace_all_uses_with(back)
            graph_module.graph.erase_node(node)
            graph_module.recompile()

        subject = Subject(
            "softmax", module, lambda input_set: Arguments((images * 3 + input_set,)), working_dtype=torch.float16
        )
        return verdict(subject, cast)


_enter_softmax("is computed in float32", torch.float32, "green")
_enter_softmax("is computed in float8", torch.float8_e4m3fn, "red")
