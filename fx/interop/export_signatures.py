"""How programs of ``torch.export`` take their arguments: positional ones and keywords, each of any structure."""

from __future__ import annotations

from typing import Any

from torch.utils import _pytree as pytree

from fx.code.codegen import CodeGen
from fx.code.pytree_codegen import PyTreeCodeGen


def keeps_keywords_apart(spec: pytree.TreeSpec) -> bool:
    """Return whether ``spec`` is the structure of a tuple of positional arguments together with a dict of keywords."""
    if spec.is_leaf() or spec.type is not tuple or spec.num_children != 2:
        return False
    args, kwargs = spec.children()
    return not (args.is_leaf() or kwargs.is_leaf()) and args.type is tuple and kwargs.type is dict


def positional_spec(spec: pytree.TreeSpec) -> pytree.TreeSpec:
    """The structure of the list of all arguments, from that of positional ones and keywords apart.

    >>> apart = pytree.tree_structure(((1, [2, 3]), {"scale": 4}))
    >>> positional_spec(apart) == pytree.tree_structure([1, [2, 3], 4])
    True
    """
    args, kwargs = spec.children()
    return pytree.TreeSpec(list, None, [*args.children(), *kwargs.children()])


class KeywordCodeGen(PyTreeCodeGen):
    """Flattens positional arguments and keywords apart, as modules of exported programs do.

    Hooks on such modules, which check inputs, read this structure from ``_in_spec``.
    """

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, *, expanded_def: bool = False) -> str:
        """The original signature, and a line that unpacks its leaves."""
        names = [name for name in self.pytree_info.orig_args if name != "self"]
        definition = CodeGen.gen_fn_def(self, names, maybe_return_annotation, expanded_def=expanded_def)
        leaves = [variable.partition(" ")[0] for variable in free_vars]
        if not leaves:
            return definition
        args, kwargs = self.pytree_info.in_spec.children()
        positional = ", ".join(names[: args.num_children])
        pairs = zip(kwargs.context, names[args.num_children :], strict=True)
        keywords = ", ".join(f"{str.__repr__(key)}:{name}" for key, name in pairs)
        flattened = f"fx_pytree.tree_flatten_spec(([{positional}], {{{keywords}}}), self._in_spec)"
        return f"{definition}\n    {', '.join(leaves)}, = {flattened}"

    def process_inputs(self, *args: Any) -> Any:
        """The leaves of the arguments, all given by position."""
        return pytree.tree_leaves(args)
