"""Several calls in a row as the subject: a stream of frames, or decoding with a cache that each call returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

import torch

from fx.argument_types import Bounds, checked
from fx.arguments import refusal, shown
from fx.container_kinds import map_leaves
from pytest_fx.errors import InputError
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.input_sets import InputSets, as_arguments
from pytest_fx.harness.structure import leaves, skeleton

MOST_STEPS = 1024
"""The largest number of steps."""
_SOURCES = "give a list of inputs, or a function (outputs, number) -> inputs of the call with this number, from 1 on"
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


@checked(InputError)
@dataclass(frozen=True, slots=True)
class Steps:
    """The inputs of several calls in a row, without a reset of the model's state in between.

    A factory returns ``(module, Steps(…))``, and ``fx_equal`` and ``assert_equal_to_eager`` take them as ``steps=``.

    >>> frames = Steps([torch.zeros(2), torch.ones(2)])
    >>> frames.count, frames.inputs(None, 1).args
    (2, (tensor([1., 1.]),))
    >>> decode = Steps(lambda outputs, number: (outputs["token"], outputs["cache"]), first=torch.zeros(2), count=4)
    >>> decode.names[2]
    'step 3 of 4'
    """

    source: Any
    """A list of the inputs of all calls. Or a function of the previous call's outputs and the number of the call.

    The function is called for the numbers 1, 2 and so on; 0 is the first call. Inputs are a tuple (positional), a dict
    (keywords) or the only argument.
    """
    first: Any = None
    """The inputs of the first call, if the source is a function; None for the example inputs of the model.

    The first call takes the first set of :class:`~pytest_fx.InputSets`.
    """
    count: Annotated[int, Bounds(1, MOST_STEPS)] = 8
    """Number of calls; that of a list is its length."""

    def __post_init__(self) -> None:
        """Refuse a source that is none."""
        if isinstance(self.source, Sequence) and not isinstance(self.source, (str, tuple)):
            if not self.source or self.first is not None:
                why = "Steps of a list take the inputs of all calls from it"
                raise refusal(why, self.source if self.first is None else self.first, error=InputError, remedy=_SOURCES)
            listed = cast("Sequence[Any]", self.source)
            object.__setattr__(self, "count", len(listed))
            object.__setattr__(self, "first", listed[0])
        elif not callable(self.source) or isinstance(self.source, torch.nn.Module):
            raise refusal("steps are a list or a function", self.source, error=InputError, remedy=_SOURCES)

    @classmethod
    def of(cls, steps: Any) -> Steps:
        """Return steps, given as such or as their source."""
        return steps if isinstance(steps, Steps) else cls(steps)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the calls in messages, which count from 1."""
        return tuple(f"step {number} of {self.count}" for number in range(1, self.count + 1))

    @property
    def first_inputs(self) -> Arguments | None:
        """The inputs of the first call; None for the example inputs of the model."""
        if isinstance(self.first, InputSets):
            return self.first.arguments(0)
        return None if self.first is None else as_arguments(self.first)

    def inputs(self, outputs: Any, number: int) -> Arguments:
        """Return the inputs of a call after the first.

        Args:
            outputs: the outputs of the call before it.
            number: the number of the call, from 1 on.

        Raises:
            InputError: the function returns nothing, or an object whose tensors are unknown.
        """
        if not callable(self.source):
            return as_arguments(self.source[number])
        inputs = self.source(outputs, number)
        if inputs is None:
            raise InputError(
                f"the function of steps returns no inputs for call {number}",
                why=f"it is called for the numbers 1 to {self.count - 1}",
                remedy="return the inputs of this call, or set count= to the number of calls",
            )
        arguments = as_arguments(inputs)
        for place, leaf in leaves((arguments.args, arguments.kwargs)):
            if not isinstance(leaf, (torch.Tensor, *_PLAIN)):
                raise InputError(
                    f"the inputs of {self.names[number]} hold an object whose tensors are not known",
                    where=f"input{place.removeprefix('[0]').removeprefix('[1]')}",
                    value=shown(leaf),
                    why="it could change between calls without notice",
                    remedy="return tuples, lists, dicts or dataclasses of tensors, or register the class by "
                    "fx.container_kinds.register_container",
                )
        return arguments


def with_choices_of(reference: Arguments, arguments: Arguments) -> Arguments:
    """Return ``arguments`` with all that is no floating-point tensor replaced by the values of ``reference``.

    Tokens, positions and masks are thus the same in all programs that are compared, and one that chooses another token
    at a tie does not go on with another text. Arguments of another structure are returned unchanged.

    >>> with_choices_of(Arguments((torch.tensor(3), torch.ones(1))), Arguments((torch.tensor(4), torch.zeros(1)))).args
    (tensor(3), tensor([0.]))
    """
    values, chosen = ((each.args, each.kwargs) for each in (arguments, reference))
    if skeleton(values) != skeleton(chosen):
        return arguments
    choices = (leaf for _, leaf in leaves(chosen))

    def choose(own: Any) -> Any:
        choice = next(choices)
        return own if _is_float(own) else choice

    return Arguments(*map_leaves(choose, values))


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
