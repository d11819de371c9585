"""``GraphModule``: a graph and the state it uses, as a module that runs generated code (paper, sections 4.2, 4.3)."""

from __future__ import annotations

import copy
import importlib
import itertools
import os
from types import FunctionType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.compiler import is_dynamo_compiling

from fx.analysis.guards import Guard, guards_of
from fx.arguments import expect, refusal
from fx.assertions import handled_error
from fx.code.codegen import PythonCode
from fx.code.pytree_codegen import PyTreeCodeGen
from fx.code.sources import LazyForward, check_scriptable, forward_of_source, not_traced
from fx.code.wrapping import wrap_generated
from fx.errors import CodegenError, FxError, GraphError, MissingAttributeError, PassError, add_note
from fx.graph import Graph
from fx.modules import attributes
from fx.modules.attributes import fetch_attribute, prefixes, put_attribute
from fx.modules.calibrated_values import load_numbers, mark_inlined, save_numbers
from fx.modules.containers import Container, QuickModule
from fx.modules.gradients import leave_modes, without_gradients
from fx.modules.pickling import imported_name
from fx.naming.printing import describe
from fx.node import Node

__all__ = ["GraphModule", "expect_program"]

# Names that client code of torch.fx imports.
_USER_PRESERVED_ATTRIBUTES_KEY = attributes.USER_PRESERVED_ATTRIBUTES_KEY
_CodeOnlyModule = attributes.CodeOnlyModule
_assign_attr = attributes.assign_attr
_copy_attr = attributes.copy_attr
_del_attr = attributes.del_attr
_forward_from_src = forward_of_source
_get_attr = fetch_attribute
_has_attr = attributes.has_attr

_OWN_STATE = frozenset({"_graph", "_written", "_code_revision"})
"""Entries of ``__dict__`` made from the graph, which are neither copied nor pickled."""


class GraphModule(QuickModule):
    """A module whose ``forward`` is generated from a ``Graph``.

    It can be used like any module: parameters and buffers keep the original's names, it trains, copies, pickles,
    scripts, compiles, and can be traced again. Call ``recompile`` after editing ``graph``.

    Each instance has a class of its own, which holds its ``forward``.

    >>> import torch, fx
    >>> traced = fx.symbolic_trace(lambda x: torch.relu(x) + 1)
    >>> print(traced.code.strip())
    def forward(self, x):
        relu = torch.relu(x);  x = None
        add = relu + 1;  relu = None
        return add
    """

    __jit_unused_properties__: ClassVar[list[str]] = ["graph", "code", "guards", "_python_code"]
    __constants__: ClassVar[list[str]] = ["_edition"]
    """Part of the identity of a TorchScript type: without it, an edited program would run the code from before."""

    _edition: ClassVar[int] = 0
    """The number of times that the instance's own class was given a ``forward``."""

    if TYPE_CHECKING:  # TorchScript would try to compile annotated attributes
        meta: dict[str, Any]
        _graph: Graph
        _code_revision: int
        _tracer_cls: type[Any] | None
        _tracer_extras: dict[str, Any] | None

    def __new__(cls, *args: Any, **kwargs: Any) -> GraphModule:
        """Make the instance's own class."""
        base = _plain_class(cls)
        own = type("GraphModuleImpl", (base,), {"__module__": base.__module__, "_of_one_instance": True})
        return torch.nn.Module.__new__(own)  # type: ignore[return-value]

    def __init__(self, root: torch.nn.Module | dict[str, Any], graph: Graph, class_name: str = "GraphModule") -> None:
        """Take the targets of ``graph`` from ``root``; tensors and modules are shared with it, not copied.

        Args:
            root: a module, or a dict from dotted paths to modules, parameters and tensors. A tensor that is no
                parameter becomes a buffer.
            graph: the program; from now on this module owns it.
            class_name: name of the module's class, for printing.

        Raises:
            GraphError: ``graph`` refers to an attribute that ``root`` does not have.
        """
        super().__init__()
        self._take(root, graph, class_name)
        self.graph = graph

    @classmethod
    def of_capture(cls, root: torch.nn.Module, graph: Graph, class_name: str, keeps_state: bool = False) -> GraphModule:
        """Return the module of a graph that was just captured from ``root``, which generates its code on demand.

        It does so when the code is read or run, or before the first edit of the graph: the code is the same. With
        ``keeps_state``, it has all parameters and buffers of ``root``, also those that the graph does not use.
        """
        module = _blank(cls, class_name)
        module._take(root, graph, class_name, keeps_state)
        module.__dict__["_graph"] = graph
        graph.owning_module = module
        graph.before_edit = module._write
        module._install()
        return module

    def _take(
        self, root: torch.nn.Module | dict[str, Any], graph: Graph, class_name: str, keeps_state: bool = False
    ) -> None:
        expect(graph, Graph, "a GraphModule is made from a Graph")
        if not isinstance(class_name, str) or not class_name or "\0" in class_name:
            raise refusal("class_name of a GraphModule is a name", class_name)
        if not isinstance(root, (torch.nn.Module, dict)):
            raise refusal("the root of a GraphModule is a module or a dict", root, remedy="torch.nn.Module() for none")
        type(self).__name__ = class_name
        targets: dict[Any, None] = {}
        for node in graph.nodes:
            if node._op in ("call_module", "get_attr"):
                if str(node._target).partition(".")[0] in _RESERVED and node._target != "training":
                    raise _reserved(node)
                targets[node._target] = None
        if isinstance(root, torch.nn.Module):
            self.__dict__["training"] = root.training
            constants_made = {} if graph.owning_module is not None else graph.constants
            bodies = {name for name, value in constants_made.items() if isinstance(value, torch.nn.Module)}
            _copy_attributes(root, self, targets, graph.constants, bodies)
            if keeps_state:
                self.hold_state_of(root)
            else:
                _order_as(root, self)
        else:
            self._take_from_dict(root, graph, [str(target) for target in targets])
        self.__dict__.update(  # without the search for modules and parameters among attributes that are set
            _tracer_cls=graph._tracer_cls,
            _tracer_extras=graph._tracer_extras,
            meta=dict(getattr(root, "meta", {})) if isinstance(root, GraphModule) else {},
        )
        if isinstance(root, torch.nn.Module):
            mark_inlined(self, root, graph.nodes)

    def hold_state_of(self, root: torch.nn.Module) -> None:
        """Hold also the parameters and buffers of ``root`` that the graph does not use, all in the order of ``root``.

        So state of the root, and of its optimizer, is valid state of the program.
        """
        counterparts: dict[int, torch.nn.Module] = {}
        _note_counterparts(root, self, counterparts)
        _hold_state(root, self, counterparts)
        _order_as(root, self)

    def _take_from_dict(self, root: dict[str, Any], graph: Graph, targets: list[str]) -> None:
        values = {**graph.constants, **root}
        for target in targets:
            if target not in values:
                raise GraphError(
                    f"the graph references target {target}, but that target was not provided in ``root``!",
                    remedy=f"add root[{target!r}]; it has {', '.join(map(repr, root)) or 'nothing'}",
                )
        for target in sorted(targets, key=lambda path: path.count(".")):
            put_attribute(self, target, values[target])

    # The graph and its code.

    @property
    def graph(self) -> Graph:
        """The program. Setting it recompiles; if that fails, the module keeps the one before."""
        return self._graph

    @graph.setter
    def graph(self, graph: Graph) -> None:
        before, owner = self.__dict__.get("_graph"), graph.owning_module
        self.__dict__["_graph"] = graph
        graph.owning_module = self
        try:
            self.recompile()
        except Exception:
            if before is not None:
                self.__dict__["_graph"], graph.owning_module = before, owner
            raise

    @property
    def guards(self) -> tuple[Guard, ...]:
        """The assumptions of the capture, each of which is checked in each run.

        They are calls in the graph, so that copies, files and passes keep them. Those of a program passed to an
        operator are in its own graph.
        """
        read = dict.fromkeys(node.target for node in self._graph.find_nodes(op="get_attr"))
        bodies = [body for path in read if isinstance(body := self._modules.get(path), GraphModule)]
        return (*guards_of(self._graph.nodes), *(guard for body in bodies for guard in body.guards))

    @property
    def code(self) -> str:
        """The generated source, as of the last ``recompile``."""
        return self._python_code.src

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "graph":  # else a module would become a child, without the property
            expect(value, Graph, "graph must be a Graph")
        super().__setattr__(name, value)

    def recompile(self) -> PythonCode:
        """Generate ``code`` and ``forward`` from the current graph; call it after an edit.

        ``forward`` itself is compiled when it is first used. Graph modules among the children are recompiled too.

        Raises:
            CodegenError: the graph cannot be written as Python.
        """
        for child in self.children():
            if isinstance(child, GraphModule):
                child.recompile()
        code = self._write()
        self._install()
        return code

    def _write(self) -> PythonCode:
        """Generate the source."""
        graph = self._graph
        code = graph.python_code("self")
        self.__dict__.update(_written=code, _code_revision=graph.revision)
        graph.before_edit = None
        codegen = graph._codegen
        if isinstance(codegen, PyTreeCodeGen):
            self._in_spec, self._out_spec = codegen.pytree_info.in_spec, codegen.pytree_info.out_spec
        return code

    @property
    def _python_code(self) -> PythonCode:
        code = self.__dict__.get("_written")
        return self._write() if code is None else code

    def _install(self) -> None:
        """Make ``forward`` run the source, which is compiled when it is first used."""
        own = type(self)

        def compiled(function: FunctionType, wrapped: list[str]) -> None:
            wrap_generated(function, wrapped)
            own.forward = function
            self.quicken()

        own.forward = LazyForward(lambda: self._python_code, compiled)  # type: ignore[assignment]
        own._edition += 1

    def __prepare_scriptable__(self) -> GraphModule:
        """Refuse a program that TorchScript cannot compile; TorchScript calls this first."""
        check_scriptable(self, self._graph)
        return self

    @not_traced
    def _compile_forward(self, edition: int) -> None:
        """Compile ``forward``; Dynamo, which traces a call, needs a function."""
        _ = self.forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program; an error that passes through the generated code gets a note with the node and its line."""
        if is_dynamo_compiling():
            self._compile_forward(self._edition)  # with the edition as argument, Dynamo traces again after recompile()
        enabled = torch.is_grad_enabled()
        try:
            # looked up at each call, so that tracing, which replaces it, sees this call
            return torch.nn.Module.__call__(self, *args, **kwargs)
        except Exception as error:
            node = self._explain(error, error.__traceback__, enabled)
            if node is not None and (refused := handled_error(node.meta.get("handled", ()), node.source, error)):
                raise refused from error
            raise

    def _explain(self, error: Exception, traceback: TracebackType | None, enabled: bool) -> Node | None:
        """Restore the modes from before the program, and add a note to an error; return its node, if that is known."""
        forward = type(self).__dict__.get("forward")
        node: Node | None = None
        leave_modes(enabled, ())
        while traceback is not None:
            if traceback.tb_frame.f_code is getattr(forward, "__code__", None):
                leave_modes(enabled, traceback.tb_frame.f_locals.values())
                node = self._add_line_note(error, traceback.tb_lineno)
            traceback = traceback.tb_next
        return node

    def _add_line_note(self, error: Exception, line: int) -> Node | None:
        code = self._python_code
        lines = code.src.splitlines()
        note = f"in generated code of {self._get_name()}, line {line}:  {lines[line - 1].strip()}"
        # once the graph is edited, the numbers of the nodes have changed
        number = code.node_number(line) if self._graph.revision == self._code_revision else None
        node = next(itertools.islice(self._graph.nodes, number, None), None) if number is not None else None
        note += f"\n  node   {describe(node)}" if node is not None else ""
        origin = code.origin(line)
        note += f"\n  where  {origin}" if origin is not None else ""
        add_note(error, note)
        return node

    # Its submodules.

    def add_submodule(self, target: str, m: torch.nn.Module) -> bool:
        """Put ``m`` at the dotted path ``target``, making empty modules on the way.

        Returns:
            False, and nothing is done, if a value on the way is not a module.

        Raises:
            GraphError: ``target`` is not a path, or ``m`` is not a module.
        """
        if not isinstance(target, str) or not all(target.split(".")):
            raise refusal("add_submodule takes a dotted path", target, remedy='gm.add_submodule("layer.norm", module)')
        expect(m, torch.nn.Module, "add_submodule takes a module", remedy="give an instance of its class")
        *path, name = target.split(".")
        owner: torch.nn.Module = self
        for atom in path:
            child = getattr(owner, atom, None)
            if child is None:
                child = Container()
                owner.add_module(atom, child)
            if not isinstance(child, torch.nn.Module):
                return False
            owner = child
        owner.add_module(name, m)
        return True

    def delete_submodule(self, target: str) -> bool:
        """Remove the submodule at the dotted path ``target``.

        Returns:
            False, and nothing is done, if there is none.
        """
        expect(target, str, "delete_submodule takes a dotted path")
        prefix, _, name = target.rpartition(".")
        try:
            owner = self.get_submodule(prefix)
        except AttributeError:
            return False
        if not isinstance(getattr(owner, name, None), torch.nn.Module):
            return False
        delattr(owner, name)
        return True

    def delete_all_unused_submodules(self) -> None:
        """Remove the submodules that the graph does not refer to, except those inside or around one that it uses."""
        used: set[str] = set()
        called: list[str] = []
        for node in self.graph.nodes:
            if node.op in ("call_module", "get_attr"):
                used.update(prefixes(node.target))
                if node.op == "call_module":
                    called.append(f"{node.target}.")
        inside = tuple(called)
        for name, _ in list(self.named_modules(remove_duplicate=False)):
            if name and name not in used and not name.startswith(inside):
                self.delete_submodule(name)

    # Text and files.

    def print_readable(
        self,
        print_output: bool = True,
        include_stride: bool = False,
        include_device: bool = False,
        colored: bool = False,
        *,
        expanded_def: bool = False,
    ) -> str:
        """Return the generated code as a class, inner programs included, with the user's lines and known shapes.

        Args:
            print_output: also print it.
            include_stride: strides beside shapes.
            include_device: devices beside shapes.
            colored: terminal colours.
            expanded_def: one parameter a line.
        """
        text = self._readable(
            self._get_name(),
            include_stride=include_stride,
            include_device=include_device,
            colored=colored,
            expanded_def=expanded_def,
        )
        if print_output:
            print(text)
        return text

    def _readable(self, name: str, **options: Any) -> str:
        parts = [self._graph.python_code("self", verbose=True, **options).src.strip()]
        for child_name, child in self.named_children():
            if isinstance(child, GraphModule):
                parts.append(child._readable(child_name, **options))
        body = "\n\n".join(parts).splitlines()
        indented = "\n".join(f"    {line}" if line.strip() else "" for line in body)
        return f"class {name}(torch.nn.Module):\n{indented}\n"

    def __str__(self) -> str:
        hint = "# To see more debug info, please use `graph_module.print_readable()`"
        return f"{super().__str__()}\n{self.code}\n{hint}"

    def _repr_html_(self) -> str:
        """Return the program as a drawing, for notebooks."""
        return importlib.import_module("fx.drawing.html_page").frame_of(self)

    def to_folder(self, folder: Any, module_name: str = "FxModule") -> None:
        """Write the program as a Python package that can be imported without tracing.

        Args:
            folder: where to write; made if it does not exist.
            module_name: name of the class in it.
        """
        expect(folder, (str, bytes, os.PathLike), "to_folder takes the path of a folder", error=CodegenError)
        writer = importlib.import_module("fx.serialization.folder")
        writer.write_folder(self, os.fsdecode(folder), module_name)

    # State that is not in tensors.

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        save_numbers(self, destination, prefix)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        state, prefix, _, _, missing, *_ = args
        revision = self._graph.revision
        load_numbers(self, state, prefix, missing)  # first, since it may refuse the state
        super()._load_from_state_dict(*args, **kwargs)
        if self._graph.revision != revision:
            self.recompile()

    # Copies.

    def _state(self) -> dict[str, Any]:
        state = {key: value for key, value in self.plain_state().items() if key not in _OWN_STATE}
        if isinstance(self._graph._codegen, PyTreeCodeGen):  # recompiling sets them
            for name in ("_in_spec", "_out_spec"):
                state.pop(name, None)
        return state

    def __copy__(self) -> GraphModule:
        """Return a module that shares state and graph with this one; the copy then owns the graph."""
        copied = _blank(type(self), type(self).__name__)
        state = self._state()
        for entry in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "meta"):
            state[entry] = copy.copy(state[entry])
        copied.__dict__.update(state)
        copied.graph = self._graph
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphModule:
        """Return a module that shares nothing with this one; names, meta, hooks and code generator are kept."""
        copied = _blank(type(self), type(self).__name__)
        memo[id(self)] = copied
        copied.__dict__.update(without_gradients(lambda: copy.deepcopy(self._state(), memo)))
        copied.graph = copy.deepcopy(self._graph, memo)
        return copied

    def __reduce__(self) -> Any:
        state = self._state()
        if self._tracer_cls is not None and imported_name(self._tracer_cls) is None:
            state["_tracer_cls"] = None
        return _unpickle, (_plain_class(type(self)), type(self).__name__, state, self._graph)

    @staticmethod
    def _advice_for(value: object) -> str:
        """Return the remedy for a value that is no program."""
        if isinstance(value, Graph):
            return "make one: fx.GraphModule(root, graph)"
        if is_of_torch(value):
            return "convert it first: fx.interop.from_torch(graph_module)"
        return "capture it first: fx.symbolic_trace(module)"

    def _replicate_for_data_parallel(self) -> GraphModule:
        replica = self.__copy__()
        replica.__dict__["_is_replica"] = True
        return replica


def expect_program(value: object, what: str, *, error: type[FxError] = PassError) -> None:
    """Refuse ``value`` unless it is a ``GraphModule``; ``what`` names the taker: ``"lower takes a GraphModule"``."""
    if not isinstance(value, GraphModule):
        raise refusal(what, value, error=error, remedy=GraphModule._advice_for(value))


def is_of_torch(value: object) -> bool:
    """Return whether ``value`` is a program of ``torch.fx``, or a part of one, without importing ``torch.fx``."""
    return any(base.__module__.startswith("torch.fx.") for base in type(value).__mro__)


def _plain_class(cls: type[GraphModule]) -> type[GraphModule]:
    """Return the class that a person wrote, without the per-instance subclasses."""
    return next(base for base in cls.__mro__ if "_of_one_instance" not in base.__dict__)


def _blank(cls: type[GraphModule], class_name: str) -> GraphModule:
    """Return a new module without graph or state."""
    module = cls.__new__(cls)
    torch.nn.Module.__init__(module)
    type(module).__name__ = class_name
    return module


def _unpickle(cls: type[GraphModule], class_name: str, state: dict[str, Any], graph: Graph) -> GraphModule:
    module = _blank(cls, class_name)
    module.__dict__.update(state)
    module.graph = graph
    return module


_RESERVED = frozenset({*vars(GraphModule), "meta", "training"})
"""Names of attributes that every GraphModule has itself."""


def _reserved(node: Node) -> GraphError:
    """Return the error that every GraphModule has another attribute under this name."""
    name = node.target.partition(".")[0]
    return GraphError(
        f"a GraphModule cannot hold an attribute called {name!r}",
        where=node.source,
        value=describe(node),
        why=f"GraphModule.{name} is part of every program",
        remedy="rename it in the module",
    )


def _note_counterparts(
    source: torch.nn.Module, owner: torch.nn.Module, counterparts: dict[int, torch.nn.Module]
) -> None:
    """Note the modules of a captured root that its program has, unchanged or as containers, by their identities."""
    counterparts[id(source)] = owner
    for name, child in source._modules.items():
        counterpart = None if child is None else owner._modules.get(name)
        if counterpart is child:
            counterparts[id(child)] = counterpart  # type: ignore[assignment]
        elif counterpart is not None:
            _note_counterparts(child, counterpart, counterparts)  # type: ignore[arg-type]


def _hold_state(source: torch.nn.Module, owner: torch.nn.Module, counterparts: dict[int, torch.nn.Module]) -> None:
    """Let ``owner`` hold the parameters and buffers of ``source`` that its graph does not use, by all their names."""
    for name, parameter in source._parameters.items():
        if parameter is not None and name not in owner._parameters:
            owner.register_parameter(name, parameter)
    for name, buffer in source._buffers.items():
        if buffer is not None and name not in owner._buffers:
            owner.register_buffer(name, buffer, name not in source._non_persistent_buffers_set)
    for name, child in source._modules.items():
        if child is None or (counterpart := owner._modules.get(name)) is child:
            continue
        if counterpart is None:
            counterpart = counterparts.get(id(child))
        if counterpart is None:
            # Activations and the like have no state to hold.
            if next(child.parameters(), None) is None and next(child.buffers(), None) is None:
                continue
            counterpart = counterparts[id(child)] = Container()
            counterpart.training = child.training
        owner._modules[name] = counterpart
        if isinstance(counterpart, Container):
            _hold_state(child, counterpart, counterparts)


def _order_as(source: torch.nn.Module, owner: torch.nn.Module) -> None:
    """Bring state and modules into the order of ``source``, instead of the order in which the program uses them.

    The state of an optimizer is matched to parameters by their order. And a capture writes the first name of a module
    with two, which is then the same one when it captures the program again.
    """
    for entries_held, order in (
        (owner._parameters, source._parameters),
        (owner._buffers, source._buffers),
        (owner._modules, source._modules),
    ):
        names = [name for name in order if name in entries_held] if len(entries_held) > 1 else []
        if names != list(entries_held)[: len(names)]:
            entries: dict[str, Any] = dict(entries_held)
            entries_held.clear()
            entries_held.update({name: entries.pop(name) for name in names})
            entries_held.update(entries)
    for name, child in owner._modules.items():
        original = source._modules.get(name)
        if isinstance(child, Container) and original is not None and original is not child:
            _order_as(original, child)


def _copy_attributes(
    root: torch.nn.Module, module: GraphModule, targets: dict[Any, None], constants: dict[str, Any], bodies: set[str]
) -> None:
    """Copy the attributes at the paths ``targets``; those inside a copied module come with it.

    ``bodies`` are constants that a trace has just made, whatever the root has under their names.
    """
    pairs: dict[str, tuple[Any, torch.nn.Module]] = {"": (root, module)}  # modules and their counterparts, by path
    for target in targets:
        prefix, _, name = target.rpartition(".")
        source, owner = pairs.get(prefix) or _pair(pairs, prefix)
        if source is owner:
            continue
        child = source._modules.get(name)
        if target in bodies:
            owner._modules[name] = constants[target]
        elif child is not None:
            existing = owner._modules.get(name)
            if existing is None or isinstance(existing, Container):
                owner._modules[name] = child
                pairs[target] = (child, child)
        elif hasattr(source, name):
            persistent = name in source._buffers and name not in source._non_persistent_buffers_set
            put_attribute(owner, name, getattr(source, name), persistent=persistent)
        elif target in constants:
            put_attribute(owner, name, constants[target], persistent=False)
        else:
            raise MissingAttributeError(
                f"the graph refers to {target!r}, which the root module does not have",
                why=f"{type(source).__name__} has no attribute {name!r}",
                remedy="add it to the root before making the GraphModule, or give the root as a dict",
            )


def _pair(pairs: dict[str, tuple[Any, torch.nn.Module]], prefix: str) -> tuple[Any, torch.nn.Module]:
    """Return the module at ``prefix`` in the source, and its counterpart."""
    if prefix in pairs:
        return pairs[prefix]
    parent, _, name = prefix.rpartition(".")
    source, owner = _pair(pairs, parent)
    if source is owner:  # inside a module that was copied whole
        pairs[prefix] = (getattr(source, name), getattr(source, name))
        return pairs[prefix]
    child = source._modules.get(name) or getattr(source, name, None)
    if not isinstance(child, torch.nn.Module):
        raise MissingAttributeError(
            f"the graph refers to {prefix!r}, which the root module does not have",
            why=f"{type(source).__name__} has no submodule {name!r}",
        )
    counterpart = owner._modules.get(name)
    if counterpart is None:
        counterpart = owner._modules[name] = Container()
        counterpart.__dict__["training"] = child.training
    pairs[prefix] = (child, counterpart)
    return pairs[prefix]
