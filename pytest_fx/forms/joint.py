"""The forms ``joint`` and ``joint-partitioner``: passes on the joint graph of forward and backward, from AOTAutograd.

AOTAutograd traces a model with its backward pass into one graph. A partitioner divides it into a forward graph and a
backward graph; values that the backward graph reads are kept between the two.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch.fx
from torch import nn
from torch.utils import _pytree as pytree

from pytest_fx.forms.exported_source import ExportedSource, Level
from pytest_fx.forms.form import Form, FormResult, Snapshot, UnreadableResultError, without_flag
from pytest_fx.forms.recognition import PATTERN_MATCHERS, first_annotation, is_one_of, parameters_of

Partition = Callable[..., tuple[torch.fx.GraphModule, torch.fx.GraphModule]]
"""From a joint graph, its inputs and ``num_fwd_outputs=`` to a forward and a backward graph."""
_COMPILER = ("torch._functorch.aot_autograd", "torch._functorch.partitioners")
_OF_GRAPH = "torch._inductor.custom_graph_pass:CustomGraphPass"


def default_partition(joint: torch.fx.GraphModule, inputs: Any, **how: Any) -> Any:
    """Divide a joint graph as AOTAutograd does by default, with those keyword arguments that this torch takes."""
    from torch._functorch.partitioners import default_partition  # noqa: PLC0415 - loads a compiler

    return default_partition(joint, inputs, **_accepted(default_partition, how))


class JointProgram(nn.Module):
    """A model that runs the forward and backward graphs of AOTAutograd, also while gradients are switched off.

    AOTAutograd specializes its graphs on sizes, so that each new signature of the inputs is traced anew.
    """

    def __init__(self, model: nn.Module, partition: Partition) -> None:
        """Take the model, and the function that divides its joint graph."""
        super().__init__()
        self.model = model
        self._partition = partition
        self._functions: dict[str, Any] = {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        return self.call(dict(self.model.named_parameters()), dict(self.model.named_buffers()), args, kwargs)

    def call(self, parameters: dict[str, Any], buffers: dict[str, Any], args: Any, kwargs: Any) -> Any:
        """Call the model with other parameters and buffers."""
        leaves = pytree.tree_leaves((parameters, args, kwargs))
        if not any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves):
            args, kwargs = pytree.tree_map(_differentiable, (args, kwargs))
        key = str([_signature(leaf) for leaf in pytree.tree_leaves((parameters, buffers, args, kwargs))])
        if key not in self._functions:
            from torch._functorch.aot_autograd import aot_function  # noqa: PLC0415 - loads a compiler

            self._functions[key] = aot_function(self._called, _as_it_is, _as_it_is, partition_fn=self._partition)
        with torch.enable_grad():
            result = self._functions[key](parameters, buffers, args, kwargs)
        return result if torch.is_grad_enabled() else pytree.tree_map(_detached, result)

    def _called(self, parameters: dict[str, Any], buffers: dict[str, Any], args: Any, kwargs: Any) -> Any:
        return torch.func.functional_call(self.model, {**parameters, **buffers}, args, kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_functions": {}}


class _Recorded:
    """A partition that records the first joint graph, before and after the pass, and both of its partitions."""

    def __init__(self, edit: Callable[[torch.fx.GraphModule], Any], partition: Partition) -> None:
        self._edit, self._divide = edit, partition
        self.before: list[Snapshot] = []
        self.after: list[Snapshot] = []
        self.joint: torch.fx.GraphModule | None = None
        self.kept = (0, 0)
        """The bytes that are kept for the backward graph, without the pass and with it."""

    def __call__(self, joint: torch.fx.GraphModule, inputs: Any, **how: Any) -> Any:
        if self.joint is not None:  # another signature
            return self._divide(self._edited(joint), inputs, **_accepted(self._divide, how))
        usual = default_partition(copy.deepcopy(joint), inputs, **how)
        self.before = [Snapshot.of(part) for part in (joint, *usual)]
        self.joint = edited = self._edited(joint)
        in_joint = Snapshot.of(edited)
        parts = self._divide(edited, inputs, **_accepted(self._divide, how))
        self.after = [in_joint, *map(Snapshot.of, parts)]
        self.kept = kept_bytes(usual[0], how["num_fwd_outputs"]), kept_bytes(parts[0], how["num_fwd_outputs"])
        return parts

    def _edited(self, joint: torch.fx.GraphModule) -> torch.fx.GraphModule:
        returned = without_flag(self._edit(joint))
        edited = returned if isinstance(returned, torch.fx.GraphModule) else joint
        if isinstance(returned, torch.fx.Graph):
            edited.graph = returned
        edited.recompile()
        return edited


def kept_bytes(forward: torch.fx.GraphModule, outputs: int) -> int:
    """Return the bytes of the values that a forward graph keeps for the backward graph, its inputs aside."""
    results: Any = forward.graph.output_node().args[0]
    saved = {node for node in results[outputs:] if isinstance(node, torch.fx.Node) and node.op != "placeholder"}
    values = [node.meta.get("val") for node in saved]
    return sum(int(value.numel()) * value.element_size() for value in values if isinstance(value, torch.Tensor))


def _apply_to_joint(pass_: Any, source: ExportedSource, level: Level) -> FormResult:
    return _result(_Recorded(_editing(pass_), default_partition), source)


def _apply_partitioner(pass_: Any, source: ExportedSource, level: Level) -> FormResult:
    return _result(_Recorded(lambda joint: joint, pass_), source)


def _result(recorded: _Recorded, source: ExportedSource) -> FormResult:
    """Trace the model by one call on copies of its tensors, and read what the pass did to the joint graph."""
    model = source.copied()
    program = JointProgram(model, recorded)
    parameters: dict[str, Any] = dict(model.named_parameters())
    with torch.random.fork_rng([]):
        program.call(*pytree.tree_map(_copied, (parameters, dict(model.named_buffers()), *source.call)))
    if recorded.joint is None:
        raise UnreadableResultError(
            "the model has no joint graph of forward and backward",
            why="no output can be differentiated by an input or a parameter",
            remedy="choose another form, by --fx-form",
        )
    before, after = recorded.before, recorded.after
    return FormResult(
        program,
        graph_module=recorded.joint,
        nodes_before=len(before[0].nodes),
        nodes_after=len(after[0].nodes),
        changed=before != after,
        changed_at=before[0].changed_at(after[0]),
        kept_bytes=recorded.kept[1],
        kept_bytes_before=recorded.kept[0],
    )


def _editing(pass_: Any) -> Callable[[torch.fx.GraphModule], Any]:
    """Return the function that applies a pass to a joint graph; Inductor's custom passes take its ``graph``."""
    if is_one_of(pass_, *PATTERN_MATCHERS):
        return lambda joint: pass_.apply(joint.graph) and None
    if is_one_of(pass_, _OF_GRAPH) or first_annotation(pass_) is torch.fx.Graph:
        return lambda joint: pass_(joint.graph)
    return pass_


def _accepted(partition: Any, how: dict[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments that a partitioner takes: newer versions of torch pass more of them."""
    parameters = parameters_of(partition)
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return how
    names = {parameter.name for parameter in parameters}
    return {name: value for name, value in how.items() if name in names}


def _is_partitioner(pass_: Any) -> bool:
    keywords = [each for each in parameters_of(pass_) if each.kind is inspect.Parameter.KEYWORD_ONLY]
    return any(each.name == "num_fwd_outputs" for each in keywords)


def _as_it_is(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
    return gm


def _signature(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.requires_grad


def _differentiable(leaf: Any) -> Any:
    return leaf.detach().requires_grad_() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf


def _copied(leaf: Any) -> Any:
    return leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf


JOINT = Form(
    "joint",
    "the joint graph of forward and backward from AOTAutograd, a torch.fx.GraphModule or its torch.fx.Graph; "
    "default_partition divides the result",
    lambda pass_: False,  # such a pass has the annotations of one in the form aten or graph
    _apply_to_joint,
    lambda joint: joint,
    ("exported",),
    laws=("form well formed",),
    is_exported=False,
    imports=_COMPILER,
)
"""Passes on joint graphs, such as Inductor's ``joint_graph_passes`` and ``joint_custom_pre_pass``."""
JOINT_PARTITIONER = Form(
    "joint-partitioner",
    "(joint_graph_module, inputs, *, num_fwd_outputs) of AOTAutograd, and returns a forward and a backward graph",
    _is_partitioner,
    _apply_partitioner,
    default_partition,
    ("exported",),
    laws=("form well formed",),
    is_exported=False,
    imports=_COMPILER,
)
"""Partitioners of joint graphs, such as ``min_cut_rematerialization_partition``."""
