"""What TorchScript cannot compile of a program: functions and modules of fx itself, refused before it tries (5.4)."""

from __future__ import annotations

from typing import Any

import torch

from fx.errors import CodegenError
from fx.modules.containers import Container
from fx.naming.printing import describe
from fx.node import Node

_FX = __name__.partition(".")[0]


def check_scriptable(program: torch.nn.Module, graph: Any) -> None:
    """Refuse a program whose graph calls what TorchScript cannot compile.

    Calls of other functions and modules are left to TorchScript, whose messages are about the user's code.

    Raises:
        CodegenError: a node calls a check with a formatted message, an observer, or a quantized operation or layer.
    """
    for node in graph.nodes:
        called = _called(program, node)
        home = str(getattr(called, "__module__", "")).split(".")
        if home[0] != _FX or len(home) < 2:
            continue
        if home[1] == "assertions":
            remedy = "the pass remove-checks takes the checks out; torch.export and torch.compile take them"
            what = "a check whose message is written when it fails"
        else:
            observes = called.__name__.endswith(("Observer", "FakeQuantize"))
            exported = "convert it and use torch.export" if observes else "use torch.export"
            remedy = f"script the program before it is quantized, or {exported}"
            what = "part of a quantized program" if home[1] == "quantize" else "part of fx"
        raise CodegenError(
            f"TorchScript cannot compile this program: `{node}` calls {'.'.join((*home, called.__name__))}",
            where=node.source,
            value=describe(node),
            why=f"it is {what}, and TorchScript compiles only a part of Python",
            remedy=remedy,
        )


def _called(program: torch.nn.Module, node: Node) -> Any:
    """The function or the class of the module that ``node`` calls, where it may be one of fx."""
    if node.op == "call_function":
        return node.target
    if node.op != "call_module":
        return None
    kind = type(program.get_submodule(str(node.target)))
    # a program in a program is checked itself
    return None if issubclass(kind, Container) or hasattr(kind, "__prepare_scriptable__") else kind
