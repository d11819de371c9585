"""The rules of a well-formed graph, each with the message that a broken one gets."""

from __future__ import annotations

import enum
import operator
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fx
from fx.analysis.verify import RULES, find_violation
from fx.provenance import SourceLocation


@pytest.fixture
def module() -> fx.GraphModule:
    return fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(2, 2)))


def by_name(module: fx.GraphModule, name: str) -> fx.Node:
    return next(node for node in module.graph.nodes if node.name == name)


def put(name: str, /, **values: Any) -> Callable[[fx.GraphModule], None]:
    """Set attributes of a node."""

    def change(module: fx.GraphModule) -> None:
        for key, value in values.items():
            setattr(by_name(module, name), key, value)

    return change


def misordered(module: fx.GraphModule) -> None:
    by_name(module, "_1").append(by_name(module, "_0"))


def erased(module: fx.GraphModule) -> None:
    node = by_name(module, "_0")
    users = list(node.users)
    node.users.clear()
    module.graph.erase_node(node)
    node.users.update(dict.fromkeys(users))


def foreign(module: fx.GraphModule) -> None:
    by_name(module, "_1").args = (fx.Graph().placeholder("other"),)


def not_listed(module: fx.GraphModule) -> None:
    by_name(module, "_0").users.clear()


def stray_user(module: fx.GraphModule) -> None:
    by_name(module, "_0").users[fx.Graph().placeholder("stray")] = None


USED_EARLY = "Argument '_0' of Node '_1' was used before it has been defined"
BROKEN: dict[str, tuple[Callable[[fx.GraphModule], None], str]] = {
    "misordered": (misordered, USED_EARLY + "(.|\\n)*it stands behind its user(.|\\n)*"
                   "move one of the two with prepend or append"),
    "erased": (erased, USED_EARLY + "(.|\\n)*it was erased from the graph"),
    "foreign": (foreign, "Argument 'other' of Node '_1' does not belong to this Graph(.|\\n)*copy it over with"),
    "renamed": (put("_1", name="_0"), "Node redefined name _0!"),
    "not listed": (not_listed, "node _0 does not list its user _1"),
    "stray user": (stray_user, "node _0 lists stray as a user, which is not in the graph"),
    "no module": (put("_1", target="2"), "Node _1 target 2 references nonexistent attribute 2 of the root module"),
    "no attribute": (put("_1", target="1.weights"),
                     "Node _1 target 1.weights references nonexistent attribute weights of 1"),
    "called tensor": (put("_1", target="1.weight"),
                      "Node _1 target 1.weight does not reference an nn.Module(.|\\n)*is a Parameter"),
}  # fmt: skip


@pytest.mark.parametrize("break_it, message", BROKEN.values(), ids=BROKEN)
def test_a_broken_rule_is_found_and_its_node_named(
    module: fx.GraphModule, break_it: Callable[[fx.GraphModule], None], message: str
) -> None:
    module.graph.lint()
    for node in module.graph.nodes:
        node.source = SourceLocation.of("net.py", 3, "forward", "x")
    break_it(module)
    with pytest.raises(fx.GraphError, match=message) as caught:
        module.graph.lint()
    assert "\n  value  %" in str(caught.value)
    assert "\n  where  net.py:3, in forward:  x" in str(caught.value)


def test_targets_are_not_looked_up_without_an_owner() -> None:
    graph = fx.Graph()
    graph.output(graph.call_module("nothing", (graph.get_attr("at all"),)))
    graph.lint()


# The rules that pipelines check besides.


def late_input(module: fx.GraphModule) -> None:
    with module.graph.inserting_after(by_name(module, "_0")):
        module.graph.placeholder("late")


def second_output(module: fx.GraphModule) -> None:
    module.graph.output(by_name(module, "_0"))


def behind_the_output(module: fx.GraphModule) -> None:
    module.graph.call_function(torch.relu_, (by_name(module, "_0"),))


def output_of_two(module: fx.GraphModule) -> None:
    by_name(module, "output").args = (by_name(module, "_0"), by_name(module, "_1"))


def used_output(module: fx.GraphModule) -> None:
    output = by_name(module, "output")
    by_name(module, "_0").prepend(output)
    output.args = (by_name(module, "input_1"),)
    by_name(module, "_0").args = (output,)


def listed_argument(module: fx.GraphModule) -> None:
    by_name(module, "_0")._args = ([by_name(module, "input_1")],)


def hidden_node(module: fx.GraphModule) -> None:
    by_name(module, "_0").args = (by_name(module, "input_1"), {by_name(module, "input_1")})


def hidden_deeper(module: fx.GraphModule) -> None:
    by_name(module, "_0").kwargs = {"options": {"key": [1, {by_name(module, "input_1")}]}}


def left_proxy(module: fx.GraphModule) -> None:
    node = by_name(module, "_0")
    node.args = (node.args[0], fx.Proxy(node.args[0]))


def user_that_uses_nothing(module: fx.GraphModule) -> None:
    by_name(module, "input_1").users[by_name(module, "_1")] = None


BROKEN_BESIDES: dict[str, tuple[Callable[[fx.GraphModule], None], str]] = {
    "opcode": (
        put("_0", _op="call_thing"),
        "Node _0 has the unknown opcode 'call_thing'\n(.|\n)*use one of placeholder, get_attr",
    ),
    "name": (put("_0", name="a b"), "Node name 'a b' is not an identifier"),
    "late input": (late_input, "placeholder late stands behind _0\n(.|\n)*before anything is computed from them"),
    "input's arguments": (put("input_1", args=(1, 2)), "placeholder input_1 has more arguments than a default"),
    "second output": (second_output, "node output_1 stands behind the output\n(.|\n)*a second output"),
    "behind the output": (behind_the_output, "node relu_ stands behind the output\n(.|\n)*never computed"),
    "output of two": (output_of_two, "an output node has one argument"),
    "used output": (used_output, "the output is used by _0"),
    "called text": (
        put("_0", op="call_function"),
        "Node _0 calls '0', which is not a function(.|\n)*a submodule by call_module",
    ),
    "numbered method": (
        put("_0", op="call_method", _target=3),
        "the target of call_method node _0 is an int, not a string",
    ),
    "method of nothing": (
        put("_0", op="call_method", target="relu", args=()),
        "Node _0 calls the method 'relu' of nothing",
    ),
    "list": (listed_argument, "Node _0 holds a list as an argument\n(.|\n)*could change without the graph's knowledge"),
    "hidden node": (hidden_node, "Node _0 holds a set as an argument\n(.|\n)*nodes in it are in no use list"),
    "hidden deeper": (hidden_deeper, "Node _0 holds a set as an argument\n(.|\n)*nodes in it are in no use list"),
    "proxy": (left_proxy, "Node _0 holds a Proxy as an argument\n(.|\n)*it stands for the node input_1"),
    "stale user": (user_that_uses_nothing, "node input_1 lists _1 as a user, which does not use it"),
}


@pytest.mark.parametrize("break_it, message", BROKEN_BESIDES.values(), ids=BROKEN_BESIDES)
def test_a_rule_that_torch_fx_does_not_check_is_found_broken(
    module: fx.GraphModule, break_it: Callable[[fx.GraphModule], None], message: str
) -> None:
    assert find_violation(module.graph) is None
    break_it(module)
    with pytest.raises(fx.GraphError) as caught:
        module.graph.lint()
    assert re.match(message, str(caught.value))


def test_every_rule_has_a_description() -> None:
    assert all((rule.__doc__ or "").endswith(".") for rule in RULES)


def test_checks_of_inputs_may_be_between_inputs() -> None:
    graph = fx.Graph()
    flag = graph.placeholder("flag")
    check = graph.call_function(operator.eq, (flag, True))
    graph.call_function(torch._assert, (check, "flag is True"))
    graph.output(graph.placeholder("x"))
    assert find_violation(graph) is None


def test_only_an_empty_graph_may_have_no_output() -> None:
    graph = fx.Graph()
    graph.lint()
    graph.placeholder("x")
    with pytest.raises(fx.GraphError, match=r"the graph has no output\n(.|\n)*graph.output\(value\)"):
        graph.lint()


def test_arguments_of_get_attr_are_refused() -> None:
    graph = fx.Graph(torch.nn.Linear(2, 2))
    graph.output(graph.create_node("get_attr", "weight", (1,)))
    with pytest.raises(fx.GraphError, match="get_attr node weight has arguments"):
        graph.lint()


def test_all_kinds_of_arguments_are_accepted() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    values = [x, (1, [x]), {"k": x}, slice(x, None), range(3), torch.ones(1), {1, 2}, Color.RED, torch.Size((1,)), ...]
    graph.output(graph.call_function(print, tuple(values)))
    assert find_violation(graph) is None


class Color(enum.Enum):
    RED = 1
