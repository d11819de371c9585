"""Wrong passes in files of users, whose mistakes pytest shows on the command line, with what it prints then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fx.passes import PassPipeline
from pytest_fx.loading import load_pass

from .rows import Case, Witness, Wrong, enter
from .users import documented, faults, mine, theirs


def _of_zoo(make: Callable[[], Any]) -> Witness:
    def build() -> Case:
        model = make()
        return Case(model.build(), model.example_inputs(batch=8), torch.float32)

    return build


def _of_pair(make: Callable[[], tuple[nn.Module, Any]]) -> Witness:
    def build() -> Case:
        torch.manual_seed(0)
        module, inputs = make()
        return Case(module.eval(), inputs if isinstance(inputs, tuple) else (inputs,), torch.float32)

    return build


def _enter(kind: str, file: Any, model: str, pass_: str, law: str, *says: str) -> None:
    passes, make = [load_pass(getattr(file, name)) for name in pass_.split(",")], getattr(file, model)
    module = file.__name__.rpartition(".")[2]
    enter(
        Wrong(
            ",".join(f"{module}:{name}" for name in pass_.split(",")), "in_files", kind,
            f"{kind[:1].upper()}{kind[1:]}.", PassPipeline(passes) if len(passes) > 1 else passes[0], (law,),
            _of_zoo(make) if file is faults else _of_pair(make),
            model=f"{module}:{model}", says=says, programs=0,
        )
    )  # fmt: skip


_enter(
    "a wrong epsilon in a fusion", faults, "normed", "FoldWithAnyEpsilon", "contract",
    "law 'contract': fold-with-any-epsilon changes what faults:normed computes",
    "the first edit that goes wrong: edit 2 of fold-with-any-epsilon: bn2 into conv2 (faults.py:",
    "%conv2 = call_module[conv2](%relu)", "value bn2[", "x = torch.relu(self.bn2(self.conv2(x)))",
)  # fmt: skip
_enter(
    "swapped operands", faults, "gated", "OperatorsForFunctions", "contract",
    "law 'contract': operators-for-functions changes what faults:gated computes",
    "the first edit that goes wrong: edit 2 of operators-for-functions: rsub becomes an operator (faults.py:",
    "%rsub = call_function[torch.Tensor.sub](%sigmoid, %y)", "value rsub[", "rest = torch.rsub(gate, y)",
)  # fmt: skip
_enter(
    "a lost bias", faults, "projected", "LinearToMatmul", "contract",
    "law 'contract': linear-to-matmul changes what faults:projected computes",
    "the first edit that goes wrong: edit 3 of linear-to-matmul: out becomes a product (faults.py:",
    "call_function[torch.matmul](%softmax, %", "value out[", "return self.out(torch.softmax(",
)  # fmt: skip
_enter(
    "a batch size baked in", faults, "flattened", "OneSample", "structure",
    "law 'structure': an output has another shape",
    "the first edit that goes wrong: edit 1 of one-sample: size becomes 1 (faults.py:",
    "%view = call_method[view](%relu, 1, -1)",
    "why view has the shape [8, 48] in the original and [1, 384] here", "x = x.view(x.size(0), -1)",
)  # fmt: skip
_enter(
    "specialization to values", faults, "shifted", "IdleRelus", "contract",
    "law 'contract': idle-relus changes what faults:shifted computes",
    "the first edit that goes wrong: edit 3 of idle-relus: relu_2 is idle (faults.py:",
    "%sub = call_function[operator.sub](%mul, 0.5)", "value relu_2[", "torch.relu(x - 0.5)",
)  # fmt: skip
_enter(
    "another function, as the documentation of torch.fx shows it", documented, "model", "transform", "contract",
    "LawViolation: law 'contract': transform changes what documented:model computes",
    "the first node that goes wrong: ", "%add = call_function[torch.mul](%x, %y)", "documented.py:",
    "z = self.linear(torch.add(x, y))", "value add[", "a test of 4 nodes that shows it alone: ",
)  # fmt: skip
_enter(
    "names the edit and the node, leaves a test, shows no line of the harness", mine, "pair", "Cut", "gradients",
    "law 'gradients'", "the first edit that goes wrong: edit 1 of cut: the output is cut off",
    "the first node whose gradient differs", "that shows it alone",
)  # fmt: skip
_enter(
    "keeps autograd's own words", mine, "pair", "written_over", "gradients", "law 'gradients'",
    "one of the variables needed for gradient computation has been modified by an inplace operation",
)  # fmt: skip
_enter("its row says so, and not that it changes nothing", mine, "pair", "raising", "refusal", "raises KeyError")
_enter(
    "a pass that turns gradients off, patches torch, sets the default dtype", mine, "pair", "quiet",
    "process untouched", "law 'process untouched'", "gradients are off",
)  # fmt: skip
_enter(
    "what it drops of a user's model is a failure of the pass that calls it", mine, "halved", "to_gelu", "contract",
    "law 'contract': to-gelu changes what mine:halved computes",
)  # fmt: skip
_enter(
    "a wrong pass for torch.fx in a list", theirs, "model", "right,wrong", "contract",
    "law 'contract': right,wrong changes what theirs:model computes",
)  # fmt: skip
