"""``prepare_qat``: quantization-aware training of a program (Jacob et al. 2017; paper, section 6.2.1)."""

from __future__ import annotations

import copy

from torch.nn.modules.batchnorm import _BatchNorm

from fx.argument_types import Inputs, checked
from fx.arguments import expect_shallow
from fx.canonical import canonical_form
from fx.errors import QuantizationError
from fx.graph_module import GraphModule
from fx.operators.families import operators
from fx.passes.fuse_conv_bn import FuseConvBN
from fx.quantize.decomposition import decompose
from fx.quantize.fake_quantization import FakeQuantize, FrozenBatchNorm
from fx.quantize.preparation import (
    SCHEME,
    is_observer,
    pad_by_numbers,
    prepare,
    record_shapes,
    scheme_of,
    without_writes,
)
from fx.quantize.rounding import RoundingInserter, take_out_rounding
from fx.quantize.scheme import Choice, QuantizationScheme

_TRAINED = "quantization_aware"
"""The entry of ``meta`` which marks a program in quantization-aware training."""
_WITH_MODES = tuple(kind.__name__ for row in operators() if row.draws or row.has_statistics for kind in row.modules)
"""Module classes that behave differently in training; ``train`` and ``eval`` still reach these modules."""


@checked(QuantizationError)
def prepare_qat(
    graph_module: GraphModule, scheme: QuantizationScheme | None = None, example_inputs: Inputs | None = None
) -> GraphModule:
    """Return a copy of a program that can be trained and rounds weights and values as quantization will.

    Gradients ignore the rounding. Batch norms stay, as their statistics are not final, but the weights of the layers
    before them are rounded as if the batch norm were folded into them. ``train`` and ``eval`` reach batch norms and
    dropout as in the original, and parameters keep their names. Ranges of values are observed in training mode. Late in
    training, :func:`freeze_observers` and :func:`freeze_batch_norm` fix ranges and statistics.
    :func:`~fx.quantize.conversion.convert` takes the copy at any time.

    Args:
        graph_module: a captured program, in either mode. Its tensors stay unchanged: the copy has its own.
        scheme: what is quantized, and how; by default all that can be, in 8 bits with moving averages of ranges.
        example_inputs: inputs for one run, which gives shapes and types; see
            :func:`~fx.quantize.preparation.prepare`.

    Raises:
        QuantizationError: the program is prepared already.

    >>> import torch, fx
    >>> program = prepare_qat(fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))).train()
    >>> program(torch.ones(1, 2)).sum().backward()
    >>> program.observers.input_1
    FakeQuantize(
      moving-average, bits=8, symmetric=False
      (range): MovingAverageObserver()
    )
    """
    expect_shallow(example_inputs, QuantizationError)
    if scheme_of(graph_module) is not None:
        raise QuantizationError(
            "this program is prepared for quantization already",
            remedy="prepare the program that was captured",
        )
    if scheme is None:
        scheme = QuantizationScheme(Choice(observer="moving-average"))
    copied = copy.deepcopy(graph_module)
    program = canonical_form(copied, leaves=_WITH_MODES).graph_module
    decompose(program, is_trained=True)
    program = canonical_form(program, leaves=_WITH_MODES).graph_module
    modes = [(module, module.training) for module in program.modules()]
    program.eval()
    # Dead code would count as a user of values that are rounded or fused, and so would norms that only keep statistics.
    program.graph.eliminate_dead_code()
    if example_inputs is not None:
        record_shapes(program, example_inputs)
    without_writes(program)
    pad_by_numbers(program)
    plan = prepare(program, scheme)
    fused = {pair.node for pair in FuseConvBN().explain(program) if pair.is_edited}
    for module, training in modes:
        module.training = training
    RoundingInserter(program, plan, scheme, fused).insert()
    program.hold_state_of(copied)  # also unused parameters: an optimizer may hold them
    program.meta[SCHEME], program.meta[_TRAINED] = scheme.to_data(), True
    program.recompile()
    return program


@checked(QuantizationError)
def freeze_observers(program: GraphModule) -> None:
    """Freeze the ranges of values, in training mode too.

    Raises:
        QuantizationError: ``program`` does not come from :func:`prepare_qat`.
    """
    _check(program)
    for module in program.modules():
        if isinstance(module, FakeQuantize):
            module.is_frozen = True


@checked(QuantizationError)
def freeze_batch_norm(program: GraphModule) -> None:
    """Freeze the statistics of batch norms, in training mode too.

    Their parameters stay the same objects, and are still trained.

    Raises:
        QuantizationError: ``program`` does not come from :func:`prepare_qat`.
    """
    _check(program)
    for path, module in list(program.named_modules()):
        if isinstance(module, _BatchNorm) and module.running_mean is not None:
            program.add_submodule(path, FrozenBatchNorm.of(module))


def is_trained(program: GraphModule) -> bool:
    """Return whether a program comes from :func:`prepare_qat`."""
    return bool(program.meta.get(_TRAINED))


def prepared_as_trained(program: GraphModule) -> GraphModule:
    """Return the prepared form of a program in its present state of training.

    Its observers are those of the training, and its tensors are copies.

    Raises:
        QuantizationError: operations were added or removed, so that other values would be observed.
    """
    scheme = scheme_of(program)
    plain = copy.deepcopy(program).eval()
    observers = take_out_rounding(plain)
    prepared = prepare(plain, scheme)
    expected = {str(node.target) for node in prepared.graph.nodes if is_observer(node)}
    if expected != observers.keys():
        raise QuantizationError(
            "the program that was trained has other operations than when it was prepared",
            value=", ".join(sorted(expected ^ observers.keys())[:10]),
            remedy="rewrite programs before prepare_qat or after convert",
        )
    for path, observer in observers.items():
        prepared.add_submodule(path, observer.range)
    return prepared


def _check(program: GraphModule) -> None:
    if not is_trained(program):
        raise QuantizationError(
            "this program is not in quantization-aware training",
            value=type(program).__name__,
            remedy="program = prepare_qat(program)",
        )
