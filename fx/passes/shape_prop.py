"""``ShapeProp`` records shape, type and layout of every value of a program (paper, section 6.3).

It runs the program on example inputs. With ``fake=True`` it runs on fake tensors, which have no elements: nothing is
computed, and the module's state stays as it is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.fake_tensor import UnsupportedOperatorException
from torch.utils import _pytree as pytree

from fx.argument_types import checked
from fx.capture.example_values import without_elements
from fx.capture.restore.record import undone
from fx.code.pytree_codegen import PyTreeCodeGen
from fx.errors import PassError, add_note
from fx.graph import Graph
from fx.graph_module import GraphModule
from fx.interpreter import Interpreter
from fx.node import Argument, Node, Target, map_aggregate
from fx.passes.tensor_metadata import TensorMetadata, extract_tensor_metadata

__all__ = ["ShapeProp", "TensorMetadata", "extract_tensor_metadata"]

_extract_tensor_metadata = extract_tensor_metadata  # the name that programs written for torch.fx import


class ShapeProp(Interpreter):
    """An interpreter that runs a program and writes two entries into the ``meta`` of each node:

    ``tensor_meta``
        a :class:`TensorMetadata` for a tensor; for a tuple, list or dict that contains tensors, the same container with
        a :class:`TensorMetadata` in place of each tensor. Other values get none.
    ``type``
        the class of the value; ``torch.Tensor`` for a fake tensor.

    A run on real tensors has the effects of the program: batch norms in training mode update their statistics, and
    random operators advance the generator. On fake tensors neither happens, nothing is computed and no weight is
    copied. But a program that depends on the elements (``x.item()``, ``x[mask]``) cannot be run on them.

    >>> import fx
    >>> program = fx.symbolic_trace(torch.nn.Linear(3, 5))
    >>> _ = ShapeProp(program).propagate(torch.ones(2, 3))
    >>> program.graph.output_node().meta["tensor_meta"].shape
    torch.Size([2, 5])
    """

    @checked(PassError)
    def __init__(self, gm: GraphModule, fake_mode: FakeTensorMode | None = None, *, fake: bool = False) -> None:
        """Prepare the analysis of one program.

        Args:
            gm: the program; only the ``meta`` of its nodes changes.
            fake_mode: run on fake tensors of this mode. Its symbolic sizes stay symbolic in the metadata. The default
                is the mode of the inputs if they are fake, or else the active mode.
            fake: run on fake tensors of a new mode, in which all sizes are numbers.
        """
        super().__init__(gm)
        self.fake_mode = FakeTensorMode(allow_non_fake_inputs=True) if fake and fake_mode is None else fake_mode
        self._fake_values: dict[str, Any] = {}
        self._copied: dict[int, Any] = {}

    def propagate(self, *args: Any) -> Any:
        """Run the program on ``args``, record metadata, and return the result (fake tensors from a run on fake ones).

        Raises:
            PassError: the number of inputs is wrong; the message shows the program's signature.
            Exception: any exception of an operation, with a note that names the node and the user's line.
        """
        self.check_count(args)
        configured_mode = self.fake_mode
        mode: Any = configured_mode if configured_mode is not None else detect_fake_mode(args)
        if mode is None:
            return self.run(*args)
        self.fake_mode = mode
        self._fake_values, self._copied = {}, {}
        try:
            inputs = pytree.tree_map_only(torch.Tensor, mode.from_tensor, args)
            modules, functions = self.module.modules(), functions_of(self.graph)
            return undone(lambda: self._run_in(mode, inputs), modules, functions, PassError)
        except UnsupportedOperatorException as error:
            add_note(error, f"{error} has no fake implementation.\n  try    register one: @torch.library.register_fake")
            raise
        finally:
            self.fake_mode = configured_mode
            self._fake_values, self._copied = {}, {}

    def _run_in(self, mode: Any, inputs: Any) -> Any:
        with mode:
            return self.run(*inputs)

    def run_node(self, n: Node) -> Any:
        """Run one node and record the metadata of its value."""
        result = super().run_node(n)
        if isinstance(result, torch.Tensor):
            n.meta["tensor_meta"] = extract_tensor_metadata(result)
        else:
            _note_container(n.meta, result)
        n.meta["type"] = _public_class(result)
        return result

    def placeholder(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Return the next input or its default, as a fake tensor if the program runs on fake tensors."""
        value = super().placeholder(target, args, kwargs)
        if self.fake_mode is not None and isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
            return self.fake_mode.from_tensor(value)
        return value

    def fetch_attr(self, target: str) -> Any:
        """Return the attribute at the dotted path ``target``, with fake tensors if the program runs on fake tensors."""
        if self.fake_mode is None:
            return super().fetch_attr(target)
        if target not in self._fake_values:
            attribute = super().fetch_attr(target)
            self._fake_values[target] = without_elements(attribute, self.fake_mode, self._copied)
        return self._fake_values[target]

    def check_count(self, args: tuple[Any, ...]) -> None:
        """Check the number of inputs, which the run itself would notice late or not at all.

        Raises:
            PassError: there are too many or too few; the message shows the program's signature.
        """
        if isinstance(self.graph._codegen, PyTreeCodeGen):
            return  # it checks the structure of the inputs itself
        inputs = self.graph.find_nodes(op="placeholder")
        single = [node for node in inputs if not str(node.target).startswith("*")]
        required = sum(not node.args for node in single)
        starred = any(str(node.target).startswith("*") and not str(node.target).startswith("**") for node in inputs)
        if len(args) < required or (len(args) > len(single) and not starred):
            raise PassError(
                f"ShapeProp was given {len(args)} input{'s' if len(args) != 1 else ''}, "
                f"but the program takes {_counted(required, None if starred else len(single))}",
                value=_signature(inputs),
                remedy="call propagate with one value for each parameter, in their order",
            )


def functions_of(graph: Graph) -> list[Any]:
    """Return the functions that a program calls, including the user's."""
    return [node.target for node in graph.find_nodes(op="call_function")]


def _public_class(value: Any) -> type:
    if not isinstance(value, FakeTensor):
        return type(value)
    return torch.nn.Parameter if isinstance(value, torch.nn.Parameter) else torch.Tensor


def _note_container(meta: dict[str, Any], result: Any) -> None:
    """Write ``tensor_meta`` for a value that contains tensors; remove an older entry for any other value."""
    has_tensors = False

    def note(leaf: Any) -> Any:
        nonlocal has_tensors
        if not isinstance(leaf, torch.Tensor):
            return leaf
        has_tensors = True
        return extract_tensor_metadata(leaf)

    noted = map_aggregate(result, note)
    if has_tensors:
        meta["tensor_meta"] = noted
    else:
        meta.pop("tensor_meta", None)


def _counted(required: int, most: int | None) -> str:
    if most is None:
        return f"at least {required}"
    return str(most) if required == most else f"{required} to {most}"


def _signature(inputs: list[Node]) -> str:
    parameters = [f"{node.target}={node.args[0]!r}" if node.args else str(node.target) for node in inputs]
    return f"forward({', '.join(parameters)})"
