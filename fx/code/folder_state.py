"""The state of a program as statements that rebuild it, and the tensors and objects that these load."""

from __future__ import annotations

import ast
import io
import itertools
from typing import Any

import torch

from fx.errors import CodegenError
from fx.modules.attributes import LEFT_BY_SCRIPTING, fetch_attribute, has_hooks
from fx.modules.containers import Container
from fx.naming.names import is_identifier


def statement(owner: str, name: str, value: str) -> str:
    """Source that assigns ``value`` to the attribute ``name`` of ``owner``."""
    return f"{owner}.{name} = {value}" if _is_plain(name) else f"setattr({owner}, {name!r}, {value})"


def expression(path: str) -> str:
    """Source that reaches the attribute at the dotted path ``path`` of ``self``."""
    text = "self"
    for name in path.split(".") if path else ():
        text = f"{text}.{name}" if _is_plain(name) else f"getattr({text}, {name!r})"
    return text


def _assignment(path: str, value: str) -> str:
    owner, _, name = path.rpartition(".")
    return statement(expression(owner), name, value)


def _is_plain(name: str) -> bool:
    """Return whether ``name`` means itself behind a dot inside a class, where two leading underscores are mangled."""
    return is_identifier(name) and not name.startswith("__")


class FolderState:
    """What ``__init__`` of a written class has to do, in the order of the attributes.

    Modules of ``torch.nn`` become the call that makes them, wherever that gives the same module again; other modules,
    and attributes that are not tensors, become objects to pickle.
    """

    def __init__(self, module: Any) -> None:
        """Collect the state of the graph module ``module``.

        Raises:
            CodegenError: it has hooks, which cannot be written.
        """
        self.shapes: list[str] = []
        """Statements that make modules, parameters and buffers without values."""
        self.flags: list[str] = []
        """Statements that set what is training and what is frozen."""
        self.tensors: dict[str, torch.Tensor] = {}
        """Values to load, by path; each tensor once."""
        self.transient: list[str] = []
        """Statements for buffers that ``load_state_dict`` leaves out."""
        self.objects: dict[str, Any] = {}
        """Modules and other values to pickle, by path."""
        self.attached: list[str] = []
        """Statements that put the objects into their places."""
        self.ties: list[str] = []
        """Statements that make one of what was one."""
        self._modules: dict[int, str] = {}
        self._values: dict[int, str] = {}
        self._frozen: list[str] = []
        self._trainable = False
        self._training: bool = module.training
        self._visit("", module)
        self._tie_objects()
        self._visit_attributes(module)
        if not self._training:
            self.flags.insert(0, "self.eval()")
        if self._frozen and not self._trainable:
            self.flags.append("self.requires_grad_(False)")
        else:
            self.flags += [f"{expression(path)}.requires_grad_(False)" for path in self._frozen]

    def pickled_objects(self) -> bytes | None:
        """The objects as ``torch.save`` stores them; None where there are none.

        Raises:
            CodegenError: one of them cannot be pickled.
        """
        if not self.objects:
            return None
        stored = io.BytesIO()
        try:
            torch.save(self.objects, stored)
        except Exception as error:
            raise CodegenError(
                f"cannot write the program: one of its attributes {', '.join(self.objects)} cannot be pickled",
                why=f"{type(error).__name__}: {error}",
                remedy="define the classes of modules at the top level of a Python module",
            ) from error
        return stored.getvalue()

    # Modules.

    def _visit(self, path: str, module: torch.nn.Module) -> None:
        known = self._modules.setdefault(id(module), path)
        if known != path:
            self.shapes.append(_assignment(path, expression(known)))
            if known in self.objects:
                self.attached.append(_assignment(path, expression(known)))
            return
        if not path or type(module) is torch.nn.Module or isinstance(module, Container):
            self._visit_holder(path, module)
            return
        call = constructor_call(module)
        if call is None:
            self.shapes.append(_assignment(path, "torch.nn.Module()"))  # keeps the place until it is loaded
            self.objects[path] = module
            self.attached.append(_assignment(path, f"objects[{path!r}]"))
            return
        self.shapes.append(_assignment(path, call))
        self._visit_flags(path, module)
        self._visit_tensors(path, module)
        self._frozen += [
            _join(path, name)
            for name, value in module._parameters.items()
            if value is not None and not value.requires_grad
        ]

    def _visit_holder(self, path: str, module: torch.nn.Module) -> None:
        if has_hooks(module):
            raise CodegenError(
                f"cannot write the program: {path or 'the module'} has hooks",
                why="they would be lost",
                remedy="remove them first, and register them on the module that is loaded",
            )
        if path:
            self.shapes.append(_assignment(path, "torch.nn.Module()"))
            self._visit_flags(path, module)
        owner = expression(path)
        for name, value in module._parameters.items():
            shape = _empty(value)
            grad = "" if value is None or value.requires_grad else ", requires_grad=False"
            made = "None" if shape is None else f"torch.nn.Parameter({shape}{grad})"
            self.shapes.append(f"{owner}.register_parameter({_text(name)!r}, {made})")
        for name, value in module._buffers.items():
            keep = "" if name not in module._non_persistent_buffers_set else ", persistent=False"
            self.shapes.append(f"{owner}.register_buffer({_text(name)!r}, {_empty(value)}{keep})")
        self._visit_tensors(path, module)
        for name, child in module._modules.items():
            if child is not None:
                self._visit(_join(path, name), child)

    def _visit_flags(self, path: str, module: torch.nn.Module) -> None:
        if module.training != self._training:
            self.flags.append(f"{expression(path)}.training = {bool(module.training)}")

    # Tensors.

    def _visit_tensors(self, path: str, module: torch.nn.Module) -> None:
        for name, value in (*module._parameters.items(), *module._buffers.items()):
            if value is None:
                continue
            where = _join(path, name)
            if isinstance(value, torch.nn.Parameter):
                self._trainable |= value.requires_grad
            elif value.requires_grad:
                self.ties.append(f"{expression(where)}.requires_grad_()")
            known = self._values.setdefault(id(value), where)
            if known != where:
                self.ties.append(_assignment(where, expression(known)))
            elif _empty(value) is None:
                self.objects[where] = value
                self.attached.append(_assignment(where, f"objects[{where!r}]"))
            else:
                self.tensors[where] = value.detach()
                if name in module._non_persistent_buffers_set:
                    self.transient.append(_assignment(where, f"tensors[{where!r}]"))

    def _tie_objects(self) -> None:
        """Let a pickled module share its tensors again with those that are not pickled."""
        for path, stored in list(self.objects.items()):
            if not isinstance(stored, torch.nn.Module):
                continue
            named = itertools.chain(
                stored.named_parameters(remove_duplicate=False), stored.named_buffers(remove_duplicate=False)
            )
            for name, value in named:
                if (known := self._values.get(id(value))) is not None:
                    self.ties.append(_assignment(_join(path, name), expression(known)))

    def _visit_attributes(self, module: Any) -> None:
        """Values that ``get_attr`` nodes read and that are neither tensors nor modules."""
        for node in module.graph.find_nodes(op="get_attr"):
            prefix, _, name = _text(node.target).rpartition(".")
            owner: Any = fetch_attribute(module, prefix)
            path = self._modules.get(id(owner))
            if path is None or path in self.objects or name not in owner.__dict__:
                continue  # inside a pickled module, or a parameter, buffer or submodule
            where = _join(path, name)
            if where not in self.objects:
                self.objects[where] = owner.__dict__[name]
                self.attached.append(_assignment(where, f"objects[{where!r}]"))


def constructor_call(module: torch.nn.Module) -> str | None:
    """Source of a call that makes ``module`` anew, its values aside; None where its ``repr`` is no such call.

    The call is put together from literals found in the ``repr``, and tried: what it makes must have the same
    attributes, and tensors of the same names, shapes and kinds.

    >>> import torch
    >>> constructor_call(torch.nn.Linear(2, 3))
    'torch.nn.Linear(in_features=2, out_features=3, bias=True)'
    """
    cls = type(module)
    if getattr(torch.nn, cls.__name__, None) is not cls or module._modules:
        return None
    try:
        parsed = ast.parse(repr(module), mode="eval").body
        if not isinstance(parsed, ast.Call) or not isinstance(parsed.func, ast.Name):
            return None
        args = [ast.literal_eval(value) for value in parsed.args]
        kwargs = {keyword.arg: ast.literal_eval(keyword.value) for keyword in parsed.keywords if keyword.arg}
        with torch.device("meta"):
            made = cls(*args, **kwargs)
    except Exception:  # whatever goes wrong, the module is pickled instead
        return None
    if len(kwargs) != len(parsed.keywords) or not _same_module(made, module):
        return None
    arguments = [*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())]
    return f"torch.nn.{cls.__name__}({', '.join(arguments)})"


def _same_module(made: torch.nn.Module, module: torch.nn.Module) -> bool:
    left, right = dict(made.__dict__), dict(module.__dict__)
    for state in (left, right):
        for name in ("training", *LEFT_BY_SCRIPTING):
            state.pop(name, None)
    for kind in ("_parameters", "_buffers"):
        ours, theirs = left.pop(kind), right.pop(kind)
        if list(ours) != list(theirs) or not all(_alike(ours[name], theirs[name]) for name in ours):
            return False
    try:
        return left.keys() == right.keys() and all(
            type(left[key]) is type(right[key]) and bool(left[key] == right[key]) for key in left
        )
    except (RuntimeError, TypeError, ValueError):  # an attribute, such as a tensor, that is not simply equal or not
        return False


def _alike(made: torch.Tensor | None, value: torch.Tensor | None) -> bool:
    if made is None or value is None:
        return made is value
    return type(made) is type(value) and _empty(value) is not None and made.shape == value.shape


def _empty(value: torch.Tensor | None) -> str | None:
    """Source of a tensor of the shape and type of ``value``; None for what is not an ordinary tensor."""
    if value is None or type(value) not in (torch.Tensor, torch.nn.Parameter):
        return None
    if value.layout is not torch.strided or value.is_quantized:
        return None
    return f"torch.empty({list(value.shape)}, dtype={value.dtype})"


def _join(path: str, name: str) -> str:
    return f"{path}.{_text(name)}" if path else _text(name)


def _text(name: str) -> str:
    """``name`` as a plain string: a subclass could put anything into its ``repr``."""
    return str.__str__(name)
