"""Signatures of programs captured with structured inputs: inputs are flattened, outputs rebuilt."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.utils import _pytree as pytree

from fx import _pytree as fx_pytree
from fx.code.codegen import CodeGen

if TYPE_CHECKING:
    from fx.node import Argument


class PyTreeInfo(NamedTuple):
    """The structure of a program's inputs and output."""

    orig_args: list[str]
    """The names of the parameters before flattening, with the bare ``*`` before keyword-only ones."""
    in_spec: pytree.TreeSpec
    """The structure of the tuple of all arguments."""
    out_spec: pytree.TreeSpec | None
    """The structure of the result; None until the program has been captured."""

    def __deepcopy__(self, memo: dict[int, Any]) -> PyTreeInfo:
        return self._replace(orig_args=list(self.orig_args))  # structures do not change

    def __reduce__(self) -> Any:
        try:
            texts = [None if spec is None else pytree.treespec_dumps(spec) for spec in (self.in_spec, self.out_spec)]
        except NotImplementedError:  # a container without a name for text
            return PyTreeInfo, tuple(self)
        return _info_from_text, (self.orig_args, *texts)


def _info_from_text(orig_args: list[str], in_spec: str, out_spec: str | None) -> PyTreeInfo:
    out = None if out_spec is None else pytree.treespec_loads(out_spec)
    return PyTreeInfo(orig_args, pytree.treespec_loads(in_spec), out)


def _default(parameter: str) -> str:
    """Return the default of a parameter, with its equals sign, as source."""
    definition: Any = ast.parse(f"def program(*, {parameter}): ...").body[0]
    default = definition.args.kw_defaults[0]
    return "" if default is None else f" = {ast.unparse(default)}"


class PyTreeCodeGen(CodeGen):
    """The generator of a function that takes and returns structured values around a body of flat ones."""

    def __init__(self, pytree_info: PyTreeInfo) -> None:
        super().__init__()
        self.pytree_info = pytree_info

    def process_inputs(self, *args: Any) -> Any:
        """Return the leaves of the arguments."""
        return fx_pytree.tree_flatten_spec(list(args), self.pytree_info.in_spec)

    def holds_structures(self, values: list[Any]) -> bool:
        """Return whether ``values`` are arguments as they were captured, rather than their leaves."""
        captured = self.pytree_info.in_spec.children()
        return pytree.tree_structure(values).children() == captured and not all(part.is_leaf() for part in captured)

    def process_outputs(self, outputs: Any) -> Any:
        """Return the leaves in the captured structure."""
        return (
            outputs if self.pytree_info.out_spec is None else pytree.tree_unflatten(outputs, self.pytree_info.out_spec)
        )

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, *, expanded_def: bool = False) -> str:
        """Return the original signature, and a line that unpacks its leaves."""
        parameters = [name for name in self.pytree_info.orig_args if name != "self"]
        written = self._with_defaults(parameters, free_vars)
        definition = super().gen_fn_def(written, maybe_return_annotation, expanded_def=expanded_def)
        leaves = [variable.partition(" ")[0].lstrip("*") for variable in free_vars if variable != "*"]
        if not leaves:
            return definition
        arguments = ", ".join(name.lstrip("*") for name in parameters if name != "*")
        return f"{definition}\n    {', '.join(leaves)}, = fx_pytree.tree_flatten_spec([{arguments}], self._in_spec)"

    def _with_defaults(self, parameters: list[str], free_vars: list[str]) -> list[str]:
        """Return the parameters with their defaults, as far as the order of parameters allows them."""
        variables = iter([variable for variable in free_vars if variable != "*"])
        parts = iter(self.pytree_info.in_spec.children())
        written: list[str] = []
        for name in parameters:
            leaves = [] if name == "*" else list(itertools.islice(variables, next(parts).num_leaves))
            # All parts of a container have the default of the container.
            written.append(name + (_default(leaves[0]) if leaves and name[0] != "*" else ""))
        count = next((place for place, name in enumerate(parameters) if name[0] == "*"), len(parameters))
        needed = max((place for place in range(count) if written[place] == parameters[place]), default=0)
        return [*parameters[:needed], *written[needed:]]

    def generate_output(
        self, output_args: Argument, *, descs: Any | None = None, repr_fn: Callable[[Any], str] | None = None
    ) -> str:
        """Return the return statement, which rebuilds the captured structure."""
        if self.pytree_info.out_spec is None:
            return super().generate_output(output_args, repr_fn=repr_fn)
        return f"return pytree.tree_unflatten({output_args!r}, self._out_spec)"

    def additional_globals(self) -> list[tuple[str, Any]]:
        """Return the two modules that the generated lines call."""
        return [("fx_pytree", fx_pytree), ("pytree", pytree)]
