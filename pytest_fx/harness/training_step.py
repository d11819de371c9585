"""A whole training step as a model: forward, loss, backward and optimizer, from a batch to new parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import torch
from torch import nn
from torch.fx import GraphModule, Interpreter
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from fx.argument_types import checked
from pytest_fx.errors import InputError, in_a_line
from pytest_fx.tracebacks import users_line

Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
"""A function that makes the optimizer of parameters."""
EARLIER_STEPS = 2
"""Number of steps before the judged one. After none, most of an optimizer's state is zero, and hides wrong factors."""
_EXAMPLE = "training_step(model, torch.nn.functional.cross_entropy, lambda p: torch.optim.SGD(p, lr=0.1))"


class TrainingStep(nn.Module):
    """One training step of a model. A call writes to none of its tensors, and returns all values after the step.

    ``step(*inputs, labels)`` returns the loss, new parameters, new buffers, and the new state of the optimizer.
    ``torch.export`` cannot trace a backward pass, so that it gets the graph of ``make_fx`` instead.
    """

    def __init__(self, model: nn.Module, loss: Any, optimizer: Optimizer) -> None:
        """Take the model, the loss of outputs and labels, and a function that makes the optimizer of parameters."""
        super().__init__()
        self.model = model
        self.optimizer_state = nn.Module()
        """A buffer for each tensor in the optimizer's state, after steps with random gradients."""
        self._loss, self._optimizer = loss, optimizer
        self._settings: dict[int, dict[str, Any]] = {}
        """Values in the optimizer's state that are no tensors, by the number of the parameter."""
        self._traced: tuple[GraphModule, ...] = ()
        """The traced step, in a tuple, since it is no part of the model; empty before the trace."""
        self._names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        self._start()

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Run a step on inputs and, last, labels."""
        if self._traced:
            tensors = dict(self.named_parameters()), dict(self.named_buffers())
            with preserve_node_meta():  # export keeps the user's line of each node
                return Interpreter(self._traced[0]).run(*tensors, args, kwargs)
        buffers = {name: buffer.detach().clone() for name, buffer in self.model.named_buffers()}
        parameters = {name: value.detach().clone() for name, value in self.model.named_parameters()}
        trained = [parameters[name].requires_grad_() for name in self._names]
        with torch.enable_grad():
            outputs = torch.func.functional_call(self.model, {**parameters, **buffers}, args[:-1], kwargs)
            loss = self._loss(outputs, args[-1])
            gradients = torch.autograd.grad(loss, trained, allow_unused=True)
        state = self._updated(trained, gradients)
        parameters = {name: value.detach() for name, value in parameters.items()}
        return {"loss": loss.detach(), "parameters": parameters, "buffers": buffers, "state": state}

    def module_to_export(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
        """Return this step as a graph of ATen operators, with the same parameters and buffers."""

        def step(parameters: dict[str, Any], buffers: dict[str, Any], args: Any, kwargs: Any) -> Any:
            return torch.func.functional_call(self, {**parameters, **buffers}, args, kwargs)

        tensors = dict(self.named_parameters()), dict(self.named_buffers())
        graph_module = make_fx(step, tracing_mode="symbolic", record_stack_traces=True)(*tensors, args, kwargs)
        for node in reversed(graph_module.graph.nodes):
            if getattr(node.target, "namespace", None) == "profiler":  # the optimizer marks its step for the profiler
                graph_module.graph.erase_node(node)
        graph_module.recompile()
        traced = copy.copy(self)
        traced._traced = (graph_module,)
        return traced

    def _start(self) -> None:
        """Let the optimizer make its state, by steps on copies of the parameters."""
        values = dict(self.model.named_parameters())
        copies = [nn.Parameter(values[name].detach().clone()) for name in self._names]
        generator = torch.Generator().manual_seed(0)
        try:
            optimizer = self._optimizer(copies)
            for _ in range(EARLIER_STEPS):
                for parameter in copies:
                    parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter)
                optimizer.step()
        except Exception as error:
            raise InputError(
                "the optimizer of a training step cannot make a step",
                where=users_line(error),
                value=in_a_line(error),
                why="it got parameters with random gradients, and its step no arguments",
                remedy=_EXAMPLE,
            ) from error
        for place, parameter in enumerate(copies):
            for key, value in optimizer.state[parameter].items():
                if isinstance(value, torch.Tensor):
                    self.optimizer_state.register_buffer(f"{key}_{place}", value.detach().clone())
                else:
                    self._settings.setdefault(place, {})[key] = copy.deepcopy(value)

    def _updated(self, trained: list[torch.Tensor], gradients: tuple[torch.Tensor | None, ...]) -> dict[str, Any]:
        """Write the new values into the parameters, and return the new state of each."""
        values: list[Any] = [parameter.detach() for parameter in trained]  # the same memory
        optimizer = self._optimizer(values)
        buffers = {name: buffer.detach().clone() for name, buffer in self.optimizer_state.named_buffers()}
        for place, (value, gradient) in enumerate(zip(values, gradients, strict=True)):
            value.grad = None if gradient is None else gradient.detach()
            optimizer.state[value] = dict(self._settings.get(place, {}))
            for name, buffer in buffers.items():
                key, _, number = name.rpartition("_")
                if int(number) == place:
                    optimizer.state[value][key] = buffer
        with torch.no_grad():
            optimizer.step()
        return {name: dict(optimizer.state[value]) for name, value in zip(self._names, values, strict=True)}


@checked(InputError)
def training_step(
    model: Annotated[nn.Module, _EXAMPLE],
    loss: Annotated[Callable[..., Any], _EXAMPLE],
    optimizer: Annotated[Optimizer, _EXAMPLE],
) -> TrainingStep:
    """Return one training step as a model, for passes on the graph of forward, loss, backward and optimizer.

    The result is called with a batch: ``training_step(model, loss, optimizer)(*inputs, labels)``. It returns a dict
    with the loss, and the parameters, buffers and optimizer state after the step, by name. The model itself is not
    trained.

    Args:
        model: the model; parts in training mode stay in it.
        loss: a function of outputs and labels that returns the loss, a tensor with one element.
        optimizer: a function of parameters that returns the optimizer: ``lambda p: torch.optim.SGD(p, lr=0.1)``.

    Raises:
        InputError: an argument is of another kind, or the optimizer cannot make a step.
    """
    return TrainingStep(model, loss, optimizer)
