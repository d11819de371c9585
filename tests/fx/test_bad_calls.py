"""Every public entry point with bad arguments: all errors have one form, and leave the program unchanged."""

from __future__ import annotations

import operator
import pathlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from bad_values import World

import fx
import fx.analysis.verify
import fx.canonical
import fx.drawing
import fx.interop
import fx.lowering
import fx.matcher
import fx.node
import fx.operator_schemas
import fx.passes.split_module
import fx.pipelines.pass_options
import fx.proxy
import fx.quantize
import fx.serialization
import fx.subgraph_rewriter
import fx.traceback
from fx.graph import PyTreeCodeGen
from fx.operators import effects
from fx.passes.graph_drawer import FxGraphDrawer
from fx.passes.shape_prop import ShapeProp
from fx.passes.split_module import split_module

_NODES = frozenset({"node", "output", "erased", "foreign", "root"})
_TEXT = frozenset({"empty", "spaces", "dots", "word"})
_CALLABLE = frozenset({"function", "class", "module", "Node", "Graph", "GraphModule", "program", "theirs", "proxy"})
_PROGRAM = frozenset({"program"})
_NONE = frozenset({"none"})
_TRUTH = frozenset({"zero", "true", "none"})
_MODULES = frozenset({"module", "program", "theirs"})
_LISTS = frozenset({"list", "numbers", "tuple", "cycle", "in a tuple", "deep"})
_DICTS = frozenset({"dict", "numbered dict", "cyclic dict"})
_EMPTY = frozenset({"list", "tuple", "dict", "empty"})
_ALL = frozenset(World().values)
_MISSING = object()


@dataclass(frozen=True)
class Entry:
    """One public function, called with one bad argument at a time."""

    name: str
    call: Callable[..., Any]
    """Takes the world and then the arguments below."""
    arguments: dict[str, tuple[Any, Iterable[str]]] = field(default_factory=dict)
    """For each argument a good value (made from the world where it is a function named so) and the values it takes."""


def _of(make: Callable[[World], Any]) -> Callable[[World], Any]:
    make.__dict__["of_world"] = True
    return make


_IN = _of(lambda world: (world.input,))
_RELU = _of(lambda world: world.relu)
_FRESH = _of(lambda world: world.program)

_ENTRIES: list[Entry] = []


def entry(name: str, call: Callable[..., Any] | None = None, /, **arguments: tuple[Any, Iterable[str]]) -> None:
    """Add a row; without ``call`` it is about the function of fx, or the method of an object of the world, so named."""
    _ENTRIES.append(Entry(name, call or _named(name), arguments))


_OWNERS: dict[str, Callable[[World], Any]] = {
    "fx": lambda w: fx,
    "Graph": lambda w: w.graph,
    "GraphModule": lambda w: w.program,
    "Interpreter": lambda w: fx.Interpreter(w.program),
}


def _named(name: str) -> Callable[..., Any]:
    owner, _, path = name.partition(".")
    return lambda w, **arguments: operator.attrgetter(path)(_OWNERS[owner](w))(**arguments)


# Graph.

_ARGS = ("none", "tuple")
_KWARGS = ("none", "dict")
_HELD = _ALL - {"cycle", "in a tuple", "cyclic dict", "deep", "erased"}
"""Possible arguments of a node; their spelling is checked only when code is generated."""

entry(
    "fx.Graph",
    owning_module=(None, (*_NONE, *_MODULES)),
    tracer_cls=(None, (*_NONE, "class", "Node", "Graph", "GraphModule")),
    tracer_extras=(None, (*_NONE, "dict", "numbered dict", "cyclic dict")),
)
for _op, _target, _takes in (
    ("call_function", torch.neg, _CALLABLE),
    ("call_method", "neg", ("word", "spaces", "dots")),
    ("call_module", "1", ("word", "spaces")),
    ("get_attr", "0.weight", ("word", "spaces")),
    ("placeholder", "y", ("word", "spaces", "dots")),
    ("output", "output", ("word", "spaces", "dots")),
):
    entry(
        f"Graph.create_node({_op})",
        lambda w, op, **k: w.graph.create_node(op, **k),
        op=(_op, ()),
        target=(_target, _takes),
        args=(_IN if _op != "placeholder" else (), _ARGS),
        kwargs=({}, _KWARGS),
        name=(None, (*_NONE, *_TEXT)),
    )
entry("Graph.placeholder", name=("y", ("word", "spaces", "dots")))
entry("Graph.placeholder(default)", lambda w, d: w.graph.placeholder("y", None, d), d=(1, _HELD))
entry("Graph.get_attr", qualified_name=("0.weight", ("word", "spaces")))
entry(
    "Graph.call_function",
    the_function=(torch.neg, _CALLABLE),
    args=(_IN, _ARGS),
    kwargs=({}, _KWARGS),
    name=(None, (*_NONE, *_TEXT)),
)
entry("Graph.call_method", method_name=("neg", ("word", "spaces", "dots")), args=(_IN, _ARGS), kwargs=({}, _KWARGS))
entry("Graph.call_module", module_name=("1", ()), args=(_IN, _ARGS), kwargs=({}, _KWARGS))
entry(
    "Graph.call_module(no owner)",
    lambda w, **k: w.other.call_module(**k),
    module_name=("1", ("word", "spaces")),
    args=((), _ARGS),
    kwargs=({}, _KWARGS),
)
entry("Graph.output", result=(_RELU, _HELD))
entry("Graph.call_function(args)", lambda w, a: w.graph.call_function(torch.neg, (a,)), a=(1, _HELD))
entry("Graph.call_function(in a list)", lambda w, a: w.graph.call_function(torch.neg, ([a],)), a=(1, _HELD))
entry("Graph.call_function(kwargs)", lambda w, a: w.graph.call_function(torch.neg, (), {"k": a}), a=(1, _HELD))
entry(
    "Graph.create_size_node",
    tensor_node=(_RELU, ("node", "foreign", "output", "root")),
    dim=(0, ("zero", "minus", "huge", "true", "node", "foreign", "output", "root")),
)
entry(
    "Graph.create_stride_node",
    tensor_node=(_RELU, ("node", "foreign", "output", "root")),
    dim=(0, ("zero", "minus", "huge", "true", "node", "foreign", "output", "root")),
)
entry("Graph.create_storage_offset_node", tensor_node=(_RELU, ("node", "foreign", "output", "root")))
entry("Graph.inserting_before", n=(_RELU, ("none", "node", "output", "root")))
entry("Graph.inserting_after", n=(_RELU, ("none", "node", "output", "root")))
entry("Graph.erase_node", to_erase=(_of(lambda w: w.output), ("output", "erased")))
entry("Graph.node_copy", node=(_RELU, _NODES), arg_transform=(lambda n: n, _CALLABLE))
entry(
    "Graph.graph_copy",
    g=(_of(lambda w: w.other), ("graph",)),
    val_map=({}, ("dict", "numbered dict", "cyclic dict")),
    return_output_node=(False, _ALL),
)
entry("Graph.eliminate_dead_code", is_impure_node=(None, (*_NONE, *_CALLABLE)))
entry("Graph.find_nodes", op=("call_function", ()), target=(None, (*_NONE, *_TEXT, *_CALLABLE)))
entry("Graph.python_code", root_module=("self", ("word",)), additional_meta=(None, (*_NONE, *_LISTS)))
entry("Graph.set_codegen", codegen=(_of(lambda w: PyTreeCodeGen), ()))
entry("Graph.on_generate_code", make_transformer=(lambda f: f, _CALLABLE))
entry(
    "Graph.on_generate_code(makes)", lambda w, c: w.graph.on_generate_code(lambda f: c), c=(None, (*_NONE, *_CALLABLE))
)

# Node.

for _who in ("relu", "erased"):

    def _node_edit(
        name: str, edit: Callable[[fx.Node, Any], Any], good: Any, takes: Iterable[str], who: str = _who
    ) -> None:
        entry(
            f"Node.{name} ({who})",
            lambda w, value: edit(getattr(w, who), value),
            value=(good, takes if who == "relu" else ()),
        )

    _node_edit("op =", lambda n, v: setattr(n, "op", v), "call_module", ())
    _node_edit("target =", lambda n, v: setattr(n, "target", v), "1", _CALLABLE | _TEXT - {"empty"})
    _node_edit("name =", lambda n, v: setattr(n, "name", v), "zz", _TEXT - {"empty"})
    _node_edit("args =", lambda n, v: setattr(n, "args", v), (), ("tuple", "list", "numbers"))
    _node_edit("args = of", lambda n, v: setattr(n, "args", (v,)), 1, _HELD - {"node"})
    _node_edit("kwargs =", lambda n, v: setattr(n, "kwargs", v), {}, ("dict",))
    _node_edit("kwargs = of", lambda n, v: setattr(n, "kwargs", {"k": v}), 1, _HELD - {"node"})
    _node_edit("update_arg", lambda n, v: n.update_arg(0, v), 1, _HELD - {"node"})
    _node_edit("update_arg(at)", lambda n, v: n.update_arg(v, 1), 0, ("zero", "minus"))
    _node_edit("insert_arg", lambda n, v: n.insert_arg(0, v), 1, _HELD - {"node"})
    _node_edit("insert_arg(at)", lambda n, v: n.insert_arg(v, 1), 0, ("zero", "true"))
    _node_edit("update_kwarg", lambda n, v: n.update_kwarg("k", v), 1, _HELD - {"node"})
    _node_edit("update_kwarg(key)", lambda n, v: n.update_kwarg(v, 1), "k", _TEXT)
    _node_edit("replace_input_with(old)", lambda n, v: n.replace_input_with(v, 1), _RELU, _NODES)
    _node_edit("replace_input_with(new)", lambda n, v: n.replace_input_with(next(iter(n.graph.nodes)), v), _RELU, _HELD)
    _node_edit("prepend", lambda n, v: n.prepend(v), _RELU, ("node", "output"))
    _node_edit("append", lambda n, v: n.append(v), _RELU, ("node", "output"))
entry(
    "Node.replace_all_uses_with",
    lambda w, **k: w.linear.replace_all_uses_with(**k),
    replace_with=(_RELU, _HELD),
    delete_user_cb=(None, (*_NONE, *_CALLABLE)),
)
entry("Node.meta =", lambda w, v: setattr(w.relu, "meta", v), v=({}, ("dict", "numbered dict", "cyclic dict")))
entry("Node.stack_trace =", lambda w, v: setattr(w.relu, "stack_trace", v), v=("x", (*_NONE, *_TEXT)))
entry("Node.origins =", lambda w, v: setattr(w.relu, "origins", v), v=((), _LISTS))
entry(
    "Node.format_node",
    lambda w, **k: w.input.format_node(**k),
    placeholder_names=(None, (*_NONE, *_LISTS - {"tuple", "in a tuple"})),
    maybe_return_typename=(None, (*_NONE, *_LISTS - {"tuple", "in a tuple"})),
)
entry(
    "Node.normalized_arguments",
    lambda w, **k: w.linear.normalized_arguments(**k),
    root=(_FRESH, _MODULES),
    arg_types=(None, (*_NONE, *_LISTS)),
    kwarg_types=(None, (*_NONE, *_DICTS)),
)
entry(
    "fx.Node",
    lambda w, **k: fx.Node(w.graph, "zz", **k),
    op=("call_function", ()),
    target=(torch.neg, _CALLABLE),
    args=((), ("tuple",)),
    kwargs=({}, ("dict",)),
)
entry("fx.map_arg(fn)", lambda w, fn: fx.map_arg((w.relu,), fn), fn=(lambda n: n, _CALLABLE))
entry(
    "fx.map_arg(a)",
    lambda w, a: fx.map_arg(a, lambda n: n),
    a=((), _ALL - {"cycle", "in a tuple", "cyclic dict", "deep"}),
)
entry("fx.node.map_aggregate(fn)", lambda w, fn: fx.node.map_aggregate((1,), fn), fn=(lambda n: n, _CALLABLE))
entry(
    "fx.node.map_aggregate(a)",
    lambda w, a: fx.node.map_aggregate(a, lambda n: n),
    a=((), _ALL - {"cycle", "in a tuple", "cyclic dict", "deep"}),
)
_HASHABLE_TARGET = (*_CALLABLE, *_TEXT)
entry("fx.has_side_effect", fn=(torch.neg, _HASHABLE_TARGET))
entry("fx.operators.effects.declare_pure", target=(torch.neg, _HASHABLE_TARGET))
entry("fx.operators.effects.effect_of", node=(_RELU, _NODES | {"their node"}))
entry("fx.operators.effects.is_impure", node=(_RELU, _NODES | {"their node"}))

# GraphModule.

entry(
    "fx.GraphModule",
    root=(_FRESH, ("program", "theirs")),
    graph=(_of(lambda w: w.graph), ("graph",)),
    class_name=("Name", ("word", "spaces", "dots")),
)
entry(
    "GraphModule.graph =",
    lambda w, graph: setattr(w.program, "graph", graph),
    graph=(_of(lambda w: w.graph), ("graph",)),
)
entry("GraphModule.add_submodule", target=("new", ("word", "spaces")), m=(_of(lambda w: torch.nn.ReLU()), _MODULES))
entry("GraphModule.delete_submodule", target=("1", _TEXT))
entry("GraphModule.to_folder", folder=("folder", (*_TEXT, "bytes")))
entry("GraphModule.to_folder(name)", lambda w, name: w.program.to_folder("folder", name), name=("Name", ("word",)))

# Running.

entry(
    "fx.Interpreter",
    module=(_FRESH, ("program",)),
    graph=(None, (*_NONE, "graph")),
    garbage_collect_values=(True, _ALL),
    listeners=((), _EMPTY),
)
entry(
    "Interpreter.run",
    lambda w, **k: fx.Interpreter(w.program).run(torch.ones(1, 2), **k),
    initial_env=(None, (*_NONE, "dict", "numbered dict", "cyclic dict")),
)
entry("Interpreter.boxed_run", args_list=(_of(lambda w: [torch.ones(1, 2)]), _LISTS - {"tuple", "in a tuple"}))
entry("Interpreter.run_node", n=(_RELU, ("erased", "root")))
entry("Interpreter.fetch_attr", target=("0.weight", ()))
entry("Interpreter.fetch_args_kwargs_from_env", n=(_RELU, ("erased", "foreign", "root")))
entry(
    "Interpreter.map_nodes_to_values",
    lambda w, a: fx.Interpreter(w.program).map_nodes_to_values(a, w.relu),
    a=((), _ALL - _NODES - {"cycle", "in a tuple", "cyclic dict", "deep"}),
)
entry("fx.Transformer", module=(_FRESH, ("program",)))
entry(
    "ShapeProp", lambda w, **k: ShapeProp(**k), gm=(_FRESH, ("program",)), fake_mode=(None, _NONE), fake=(False, _ALL)
)
entry("ShapeProp.propagate", lambda w, a: ShapeProp(w.program).propagate(w.input, a), a=(1, ()))

# Capture.

entry("fx.symbolic_trace", root=(torch.nn.ReLU, (*_MODULES, "function")), concrete_args=(None, (*_NONE, "dict")))
_TAKES = lambda x: x  # noqa: E731
entry("fx.symbolic_trace(args)", lambda w, a: fx.symbolic_trace(_TAKES, a), a=(None, (*_NONE, "dict")))
entry("Tracer.trace", lambda w, root: fx.Tracer().trace(root), root=(_TAKES, (*_MODULES, "function")))
entry("Tracer.trace(args)", lambda w, a: fx.Tracer().trace(_TAKES, a), a=(None, (*_NONE, "dict")))
entry("fx.Tracer", autowrap_modules=((), _EMPTY), autowrap_functions=((), _EMPTY), param_shapes_constant=(False, _ALL))


def _tracer(w: World) -> fx.Tracer:
    tracer = fx.Tracer()
    tracer.trace(w.program)
    return tracer


entry("Tracer.path_of_module", lambda w, m: _tracer(w).path_of_module(m), m=(_of(lambda w: w.program), ("program",)))
entry("Tracer.is_leaf_module", lambda w, m: fx.Tracer().is_leaf_module(m, ""), m=(_of(lambda w: w.program), _MODULES))
entry("Tracer.get_fresh_qualname", lambda w, p: _tracer(w).get_fresh_qualname(p), p=("x", _TEXT))
entry("Tracer().path_of_module", lambda w, m: fx.Tracer().path_of_module(m), m=(_of(lambda w: w.program), ()))
entry("Tracer().create_proxy", lambda w, a: fx.Tracer().create_proxy("call_function", torch.neg, (a,), {}), a=(1, ()))
entry("fx.proxy.GraphAppendingTracer", graph=(_of(lambda w: w.graph), ("graph",)))
entry(
    "create_proxy",
    lambda w, **k: fx.proxy.GraphAppendingTracer(w.graph).create_proxy(**k),
    kind=("call_function", ()),
    target=(torch.neg, _CALLABLE),
    args=((), ("tuple",)),
    kwargs=({}, ("dict", "none")),
    name=(None, (*_NONE, *_TEXT)),
)
entry("fx.Proxy", node=(_RELU, _NODES), tracer=(None, _NONE))
_IMMEDIATE = frozenset({"none", "zero", "minus", "huge", "float", "true", "bytes", "list", "numbers", "tuple"})
_IMMEDIATE |= _TEXT | {"dict", "numbered dict", "tensor"}
entry("Proxy +", lambda w, a: fx.Proxy(w.input) + a, a=(1, _IMMEDIATE | {"proxy"}))
entry("fx.wrap", fn_or_name=("zzz", ()))


def _returns(value: Any) -> Callable[[Any], Any]:
    def program(x: Any) -> Any:
        return x, value

    return program


entry("capture of a result", lambda w, v: fx.symbolic_trace(_returns(v)), v=(1, _IMMEDIATE | {"class", "function"}))

# Rewriting.

_NEG = lambda x: torch.neg(x)  # noqa: E731
entry(
    "fx.replace_pattern",
    gm=(_FRESH, ("program",)),
    pattern=(_NEG, _MODULES),
    replacement=(_NEG, ("module", "program", "theirs", "graph")),
)
entry(
    "fx.subgraph_rewriter.replace_pattern_with_filters",
    gm=(_FRESH, ("program",)),
    pattern=(_NEG, _MODULES),
    replacement=(_NEG, ("module", "program", "theirs", "graph")),
    match_filters=(None, (*_NONE, *_EMPTY)),
    ignore_literals=(False, _ALL),
    replacement_callback=(None, (*_NONE, *_CALLABLE)),
    node_name_match=("", _TEXT),
)
entry(
    "fx.matcher.Matcher",
    graph_module=(_FRESH, ("program",)),
    pattern=(_NEG, _MODULES),
    match_filters=((), _EMPTY),
    node_name_match=("", _TEXT),
)
entry("fx.matcher.explain", graph_module=(_FRESH, ("program",)), pattern=(_NEG, _MODULES))
entry("fx.matcher.literal", name=("p", _TEXT))
entry(
    "split_module",
    lambda w, **k: split_module(**k),
    m=(_FRESH, ("program",)),
    root_m=(None, _ALL),
    split_callback=(lambda n: 0, _CALLABLE),
    qualname_map=(None, (*_NONE, "dict", "numbered dict", "cyclic dict")),
    partition_affix=(None, (*_NONE, "word", "spaces", "empty")),
)
entry(
    "fx.passes.split_by_nodes",
    graph_module=(_FRESH, ("program",)),
    sets=((), ("list", "tuple", "dict", "empty", "bytes")),
)
entry("split_by_nodes(of)", lambda w, n: fx.passes.split_by_nodes(w.program, [[n]]), n=(_RELU, ("node", "root")))

# Passes.

for _name in fx.passes.list_passes():
    _pass = type(fx.passes.get_pass(_name))
    if _pass.__module__.partition(".")[0] != "fx":
        continue
    entry(f"{_name}()", lambda w, g, kind=_pass: kind()(g), g=(_FRESH, ("program",)))
    if hasattr(_pass, "explain"):
        entry(f"{_name}.explain", lambda w, g, kind=_pass: kind().explain(g), g=(_FRESH, ("program",)))
entry("fx.passes.Split", at=((), (*_EMPTY, *_TEXT, "cyclic dict")))
entry(
    "fx.passes.PassPipeline",
    passes=((), (*_EMPTY, "function", "bytes", "proxy")),
    listeners=((), _EMPTY),
    name=("pipeline", _TEXT),
)
_PIPELINE = fx.passes.PassPipeline("remove-dead-code")
entry(
    "PassPipeline.run",
    lambda w, **k: _PIPELINE.run(**k),
    graph_module=(_FRESH, ("program",)),
    fuel=(None, (*_NONE, "zero", "huge")),
)
entry("PassPipeline()", lambda w, g: _PIPELINE(g), g=(_FRESH, ("program",)))
entry(
    "PassPipeline.bisect",
    lambda w, **k: _PIPELINE.bisect(**k),
    graph_module=(_FRESH, ("program",)),
    predicate=(lambda p: True, _CALLABLE),
)
entry("fx.passes.get_pass", name=("remove-dead-code", ()))
entry("fx.passes.parse_pipeline", text=("remove-dead-code", ()))
entry("fx.passes.describe_pass", name=("remove-dead-code", ()))
entry("fx.passes.register_pass", definition=(fx.passes.Split, _CALLABLE))
entry("fx.passes.verify", graph_module=(_FRESH, ("program",)))
entry("fx.passes.approximate", sqnr_db=(30, ("zero", "minus", "float", "true")))
entry("fx.passes.Close", rtol=(0, ("zero", "float", "true")), atol=(0, ("zero", "float", "true")))

# Interchange.

entry("fx.interop.from_torch", graph_module=(_of(lambda w: w.theirs), ("theirs",)))
entry("fx.interop.to_torch", graph_module=(_FRESH, ("program",)))
entry("fx.interop.adapt", pass_=(lambda g: g, ("function", "class", "Node", "Graph", "GraphModule", "proxy")))
entry("interop.adapt()", lambda w, g: fx.interop.adapt(lambda g: g)(g), g=(_FRESH, ("program",)))
entry("fx.interop.from_export", exported_program=(None, ()))
entry("fx.interop.is_for_torch", pass_=(None, _ALL))
entry("fx.save", lambda w, g: fx.save(g, "zzz.safetensors"), g=(_FRESH, ("program",)))
entry("fx.save(path)", lambda w, path: fx.save(w.program, path), path=("zzz", (*_TEXT, "bytes")))
entry("fx.load", path=("zzz", (*_TEXT, "bytes")))
entry(
    "fx.lower",
    lambda w, **k: fx.lower(**k, dry_run=True),
    gm=(_FRESH, ("program",)),
    backend=("onednn", ()),
    on_failure=("raise", ()),
    min_size=(None, (*_NONE, "zero", "huge")),
    veto=((), (*_EMPTY, *_TEXT, *_CALLABLE, "cyclic dict")),
)
entry(
    "fx.draw",
    program=(_FRESH, ("program",)),
    path=("zzz.svg", ()),
    inputs=(None, _NONE),
    figures=((), _EMPTY),
    color=("opcode", ()),
)
entry(
    "fx.drawing.record_passes",
    graph_module=(_FRESH, ("program",)),
    passes=((), (*_CALLABLE, "list", "tuple", "dict")),
    inputs=(None, _NONE),
)
entry("FxGraphDrawer", lambda w, g: FxGraphDrawer(g, "net"), g=(_FRESH, ("program",)))
entry("FxGraphDrawer(name)", lambda w, name: FxGraphDrawer(w.program, name), name=("net", _TEXT))
for _name in ("prepare", "convert", "reference", "prepare_qat", "freeze_observers", "freeze_batch_norm", "report"):
    entry(f"quantize.{_name}", lambda w, g, name=_name: getattr(fx.quantize, name)(g), g=(_FRESH, ("program",)))
for _name in ("prepare", "prepare_qat"):
    entry(
        f"quantize.{_name}(scheme)",
        lambda w, scheme, name=_name: getattr(fx.quantize, name)(w.program, scheme),
        scheme=(None, _NONE),
    )
entry(
    "fx.operator_schemas.normalize_function",
    target=(torch.neg, _CALLABLE),
    args=((1,), _LISTS),
    kwargs=(None, (*_NONE, *_DICTS)),
    arg_types=(None, (*_NONE, *_LISTS)),
    kwarg_types=(None, (*_NONE, *_DICTS)),
)
entry(
    "fx.operator_schemas.normalize_module",
    root=(_FRESH, ("program", "theirs")),
    target=("1", ("empty",)),
    args=((1,), _LISTS),
    kwargs=(None, (*_NONE, *_DICTS)),
)


entry("traceback.annotate", lambda w, d: fx.traceback.annotate(d).__enter__(), d=({}, _DICTS))
entry("fx.traceback.annotate_fn", annotation_dict=({}, _DICTS))
entry("traceback.annotate_fn()", lambda w, f: fx.traceback.annotate_fn({})(f), f=(_NEG, _CALLABLE))
entry("traceback.set_current_meta", lambda w, n: fx.traceback.set_current_meta(n).__enter__(), n=(_RELU, _NODES))
entry("fx.traceback.set_stack_trace", stack=([], _LISTS))
entry("fx.lowering.get_backend", name=("onednn", ()))
entry("fx.lowering.register_backend", backend=(None, ()))
entry("fx.serialization.allow", target=(None, _CALLABLE))
entry("fx.operator_schemas.get_signature_for_torch_op", op=(torch.neg, _CALLABLE))
entry(
    "fx.operator_schemas.check_for_mutable_operation",
    target=(torch.neg, _CALLABLE),
    args=((), _LISTS),
    kwargs=({}, _DICTS),
)
entry(
    "Tracer.create_arg",
    lambda w, a: fx.proxy.GraphAppendingTracer(w.graph).create_arg(a),
    a=(1, _IMMEDIATE | {"proxy"}),
)
entry("fx.canonical.canonical_form", graph_module=(_FRESH, _PROGRAM))
for _name in ("noise", "sensitivity", "advise"):
    entry(
        f"quantize.{_name}",
        lambda w, name=_name, **k: getattr(fx.quantize, name)(**k),
        program=(_FRESH, ()),
        data=([], ()),
        scheme=(None, ()),
    )
entry("fx.quantize.QuantizationScheme", default=(fx.quantize.Choice(), ()))
for _name in ("precision", "symmetric", "observer", "percentile", "activation_bits", "weight_bits", "per_channel"):
    entry(
        f"quantize.Choice({_name})",
        lambda w, value, name=_name: fx.quantize.Choice(**{name: value}),
        value=(None, ("true",) if _name in ("symmetric", "per_channel") else ()),
    )
entry("fx.quantize.Override", choice=(fx.quantize.Choice(), ()), node=("x", _TEXT))
entry("Quantize.with_data", lambda w, d: fx.quantize.Quantize().with_data(d), d=((), _EMPTY))
_OF_OPTIONS = {bool: ("true",), int: ("zero", "minus", "huge"), tuple: ("tuple", "list")}
for _pass in (fx.passes.FuseConvBN, fx.passes.FoldConstants, fx.passes.Canonicalize, fx.passes.RemoveChecks):
    for _option in fx.pipelines.pass_options.options_of(_pass):
        entry(
            f"{_pass.__name__}({_option.name})",
            lambda w, value, kind=_pass, option=_option.name: kind(**{option: value}),
            value=(_option.default, _OF_OPTIONS[type(_option.default)]),
        )


def _attempts() -> list[tuple[Entry, str, str]]:
    return [
        (row, argument, value)
        for row in _ENTRIES
        for argument, (_, takes) in row.arguments.items()
        for value in sorted(_ALL.difference(takes))
    ]


_FORM = re.compile(r"\n  (where|value|why|try) ")


def _trial(world: World, row: Entry, argument: str, value: str) -> str | None:
    """Return the fault in the outcome of the call."""
    arguments = {name: good(world) if hasattr(good, "of_world") else good for name, (good, _) in row.arguments.items()}
    arguments[argument] = world.values[value]
    before = world.snapshot()
    try:
        row.call(world, **arguments)
    except fx.FxError as error:
        if not _FORM.search(str(error)):
            return f"says no more than: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error!s:.150}"
    else:
        return "accepted"
    return None if world.snapshot() == before else "refused, but the program is another one"


@pytest.mark.thorough
def test_bad_calls_are_refused_in_one_form_and_change_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        fx.pipelines.registered_passes, "_definitions", fx.pipelines.registered_passes._definitions.copy()
    )
    monkeypatch.setattr(effects, "rules", dict(effects.rules))
    attempts = _attempts()
    world, survivors = World(), dict[str, str]()
    for row, argument, value in attempts:
        if (end := _trial(world, row, argument, value)) is not None:
            survivors[f"{row.name}: {argument} = {value}"] = end
            world = World()
    assert len(attempts) >= 1000
    assert not survivors
