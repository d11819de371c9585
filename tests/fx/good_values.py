"""Good arguments of the public functions of fx, by the names of their parameters, and objects to call methods of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from bad_values import World

import fx
import fx.canonical
import fx.lowering
import fx.matcher
import fx.operator_schemas
import fx.passes
import fx.proxy
import fx.quantize
from fx.graph import Namespace, PyTreeCodeGen
from fx.passes.shape_prop import ShapeProp


def _identity(value: Any) -> Any:
    return value


def _neg(x: Any) -> Any:
    return torch.neg(x)


class Network:
    """A network of a backend, as small as there is."""

    def add_input(self, node: fx.Node) -> Any:
        return node

    def begin(self, node: fx.Node) -> None:
        pass

    def finish(self, outputs: tuple[Any, ...], is_single: bool) -> None:
        pass


def _bytes() -> torch.Tensor:
    return torch.arange(4, dtype=torch.uint8).reshape(2, 2)


_CONSTANTS: dict[str, Any] = {
    "op": "call_function", "kind": "call_function", "target": torch.neg, "name": "zz", "args": (),
    "the_function": torch.neg, "method_name": "neg", "module_name": "1", "qualified_name": "0.weight", "dim": 0,
    "arg": 1, "idx": 0, "key": "k", "names": ("origin",), "fn": _identity, "make_transformer": _identity,
    "root_module": "self", "maybe_return_annotation": "", "outputs": 1, "out": 1, "candidate": "zz", "line": 0,
    "class_name": "Name", "concrete_args": None, "root_fn": _neg, "is_module": False, "attr": "training",
    "attr_val": True, "prefix": "x", "module_qualified_name": "", "forward": _identity, "path": "zzz",
    "module_path": "", "module_type": None, "fn_or_name": "zz", "pattern": _neg, "replacement": _neg, "sets": (),
    "passes": "remove-dead-code", "pass_": _identity, "text": "remove-dead-code", "definition": fx.passes.Split,
    "sqnr_db": 30.0, "op_": torch.neg, "signature_type": int, "argument_type": int, "fn_or_op": torch.neg, "rank": 2,
    "eps": 1e-5, "low": -1.0, "high": 1.0, "value": 1.0, "num_features": 2, "in_features": 2, "out_features": 2,
    "in_channels": 2, "out_channels": 2, "kernel_size": (1, 1), "stride": (1, 1), "padding": (0, 0),
    "dilation": (1, 1), "shape": (2, 2), "dtype": torch.uint8, "has_bias": True, "backend": "onednn", "argument": 0,
    "folder": "folder", "level": 1, "precision": "float32", "content": b"x", "scale": 0.5, "input_scale": 0.5,
    "other_scale": 0.5, "zero_point": 3, "input_zero_point": 3, "other_zero_point": 3,
}  # fmt: skip

BY_NAME: Mapping[str, Callable[[World], Any]] = {
    **{name: lambda world, value=value: value for name, value in _CONSTANTS.items()},
    # programs, graphs and nodes
    **dict.fromkeys(
        ("graph_module", "gm", "program", "module", "m", "root_module_", "region"), lambda world: world.program
    ),
    **dict.fromkeys(("prepared", "other_program"), lambda world: fx.quantize.prepare(world.program)),
    "converted": lambda world: fx.quantize.convert(_calibrated(world)),
    "root": lambda world: world.program,
    "graph": lambda world: world.graph,
    "g": lambda world: world.other,
    **dict.fromkeys(("node", "n", "tensor_node", "x", "old_input", "to_erase"), lambda world: world.linear),
    "replace_with": lambda world: world.input,
    "new_input": lambda world: world.input,
    "val_map": lambda world: {},
    "kwargs": lambda world: {},
    "result": lambda world: world.relu,
    "a": lambda world: (world.relu,),
    "codegen": lambda world: fx.CodeGen(),
    "free_vars": lambda world: ["x"],
    "output_args": lambda world: world.relu,
    "pytree_info": lambda world: _tree_codegen().pytree_info,
    # capture
    "parameter_proxy_cache": lambda world: {},
    "obj": lambda world: fx.Proxy(world.input),
    "mod": lambda world: world.program,
    "tracer": lambda world: fx.proxy.GraphAppendingTracer(world.graph),
    "param": lambda world: torch.nn.Parameter(torch.ones(2)),
    "scope": lambda world: fx.proxy.Scope("", None),
    "current_scope": lambda world: fx.proxy.Scope("", None),
    # running
    "args_list": lambda world: [torch.ones(1, 2)],
    # rewriting, passes
    "predicate": lambda world: lambda program: True,
    "annotation_dict": lambda world: {},
    "stack": lambda world: [],
    # interchange
    "exported_program": lambda world: world.exported(),
    # quantization
    "choice": lambda world: fx.quantize.Choice(),
    "data": lambda world: [(torch.ones(1, 2),)],
    "input": lambda world: _bytes(),
    "other": lambda world: _bytes(),
    "weight": lambda world: torch.ones(2, 2),
    "bias": lambda world: torch.ones(2),
    "table": lambda world: torch.arange(256),
    "gain": lambda world: torch.ones(2),
    "running_var": lambda world: torch.ones(2),
    "norm": lambda world: torch.nn.BatchNorm1d(2),
    "observer": lambda world: fx.quantize.MinMaxObserver(),
    # lowering
    "operation": lambda world: _operation(world),
    "example_inputs": lambda world: (torch.ones(1, 2),),
    "built": lambda world: torch.nn.ReLU(),
    "converter": lambda world: fx.lowering.Converter(torch.neg, lambda *_: None),
    "converters": lambda world: fx.lowering.Converters("zzz"),
    "build": lambda world: lambda *_: None,
    "subject": lambda world: _operation(world).subject,
    "network": lambda world: Network(),
}


_OF_INTERPRETERS = {
    "call_function": {"target": lambda world: torch.neg, "args": lambda world: (torch.ones(2),)},
    "call_method": {"target": lambda world: "neg", "args": lambda world: (torch.ones(2),)},
    "call_module": {"target": lambda world: "1", "args": lambda world: (torch.ones(2),)},
    "get_attr": {"target": lambda world: "0.weight"},
    "placeholder": {"target": lambda world: "input_1"},
    "output": {"target": lambda world: "output", "args": lambda world: (1,)},
    "fetch_attr": {"target": lambda world: "0.weight"},
}
"""Good arguments of an interpreter's methods."""

BY_CALLABLE: Mapping[str, Mapping[str, Callable[[World], Any]]] = {
    **{
        f"{kind}.{name}": maker
        for kind in ("fx.Interpreter", "fx.Transformer", "fx.passes.ShapeProp")
        for name, maker in _OF_INTERPRETERS.items()
    },
    "fx.symbolic_trace": {"root": lambda world: _neg},
    "fx.Tracer.trace": {"root": lambda world: _neg},
    "fx.lowering.Lower": {},
    "fx.GraphModule": {"class_name": lambda world: "Name"},
    "fx.GraphModule.add_submodule": {"target": lambda world: "new", "m": lambda world: torch.nn.ReLU()},
    "fx.GraphModule.delete_submodule": {"target": lambda world: "1"},
    "fx.passes.shape_prop.extract_tensor_metadata": {"result": lambda world: torch.ones(2)},
    "fx.passes.get_pass": {"name": lambda world: "remove-dead-code"},
    "fx.passes.describe_pass": {"name": lambda world: "remove-dead-code"},
    "fx.lowering.get_backend": {"name": lambda world: "onednn"},
    "fx.operator_schemas.normalize_module": {"target": lambda world: "1", "args": lambda world: (1,)},
    "fx.interop.from_torch": {"graph_module": lambda world: world.theirs},
    "fx.operator_schemas.get_signature_for_torch_op": {"op": lambda world: torch.neg},
    "fx.quantize.dequantize_channels": {"scale": lambda world: torch.ones(2)},
    "fx.quantize.max_pool": {"input": lambda world: torch.zeros(1, 1, 2, 2, dtype=torch.uint8)},
    "fx.quantize.embedding": {"weight": lambda world: _bytes(), "scale": lambda world: torch.ones(2)},
}


def _calibrated(world: World) -> fx.GraphModule:
    prepared = fx.quantize.prepare(world.program)
    prepared(torch.ones(1, 2))
    return prepared


def _operation(world: World) -> Any:
    from fx.lowering.known_program import KnownProgram

    return fx.lowering.Operation(world.linear, KnownProgram(world.program))


def _tree_codegen() -> PyTreeCodeGen:
    program = fx.symbolic_trace(lambda x: x["a"], {"x": {"a": fx.PH}})
    codegen = program.graph._codegen
    assert isinstance(codegen, PyTreeCodeGen)
    return codegen


def _traced(world: World) -> fx.Tracer:
    tracer = fx.Tracer()
    tracer.trace(world.program)
    return tracer


INSTANCES: Mapping[str, Callable[[World], Any]] = {
    "fx.CodeGen": lambda world: fx.CodeGen(),
    "fx.Graph": lambda world: world.graph,
    "fx.GraphModule": lambda world: world.program,
    "fx.Interpreter": lambda world: fx.Interpreter(world.program),
    "fx.Node": lambda world: world.relu,
    "fx.Proxy": lambda world: fx.Proxy(world.input),
    "fx.Tracer": _traced,
    "fx.Transformer": lambda world: fx.Transformer(world.program),
    "fx.canonical.Canonicalizer": lambda world: fx.canonical.Canonicalizer(world.program),
    "fx.graph.Namespace": lambda world: Namespace(),
    "fx.graph.PyTreeCodeGen": lambda world: _tree_codegen(),
    "fx.graph.PythonCode": lambda world: world.graph.python_code("self"),
    "fx.lowering.Converters": lambda world: fx.lowering.Converters("zzz"),
    "fx.lowering.Lower": lambda world: fx.lowering.Lower(),
    "fx.lowering.OneDNN": lambda world: fx.lowering.OneDNN(),
    "fx.lowering.Operation": _operation,
    "fx.matcher.Matcher": lambda world: fx.matcher.Matcher(world.program, _neg),
    "fx.passes.PassPipeline": lambda world: fx.passes.PassPipeline("remove-dead-code"),
    "fx.passes.shape_prop.ShapeProp": lambda world: ShapeProp(world.program),
    "fx.passes.ShapeProp": lambda world: ShapeProp(world.program),
    "fx.passes.PipelineListener": lambda world: fx.passes.PipelineListener(),
    "fx.proxy.GraphAppendingTracer": lambda world: fx.proxy.GraphAppendingTracer(world.graph),
    "fx.proxy.Attribute": lambda world: fx.Proxy(world.input).weight,
    "fx.quantize.Affine": lambda world: fx.quantize.Affine(0.5, 3),
    "fx.quantize.FakeQuantize": lambda world: fx.quantize.FakeQuantize(),
    "fx.quantize.FrozenBatchNorm": lambda world: fx.quantize.FrozenBatchNorm(2),
    "fx.quantize.HistogramObserver": lambda world: fx.quantize.HistogramObserver(),
    "fx.quantize.MinMaxObserver": lambda world: fx.quantize.MinMaxObserver(),
    "fx.quantize.MovingAverageObserver": lambda world: fx.quantize.MovingAverageObserver(),
    "fx.quantize.PercentileObserver": lambda world: fx.quantize.PercentileObserver(),
    "fx.quantize.Override": lambda world: fx.quantize.Override(fx.quantize.Choice(), node="x"),
    "fx.quantize.QuantizationScheme": lambda world: fx.quantize.QuantizationScheme(),
    "fx.quantize.Quantize": lambda world: fx.quantize.Quantize(),
    "fx.quantize.QuantizedLinear": lambda world: fx.quantize.QuantizedLinear(2, 2),
    "fx.quantize.QuantizedConv": lambda world: fx.quantize.QuantizedConv(2, 2, (1, 1), (1, 1), (0, 0), (1, 1)),
    **{
        f"fx.passes.{kind.__name__}": lambda world, kind=kind: kind()
        for kind in map(type, map(fx.passes.get_pass, fx.passes.list_passes()))
        if kind.__module__.startswith("fx.passes.")
    },
}
"""Objects of public classes."""
