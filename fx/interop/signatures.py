"""How programs of ``torch.export`` take their arguments: positional ones and keywords, each of any structure."""

from __future__ import annotations

from torch.utils import _pytree as pytree


def positional_spec(spec: pytree.TreeSpec) -> pytree.TreeSpec:
    """The structure of the list of all arguments, where ``spec`` may be that of positional ones and keywords apart.

    >>> apart = pytree.tree_structure(((1, [2, 3]), {"scale": 4}))
    >>> positional_spec(apart) == pytree.tree_structure([1, [2, 3], 4])
    True
    """
    if spec.is_leaf() or spec.type is not tuple or spec.num_children != 2:
        return spec
    args, kwargs = spec.children()
    if args.is_leaf() or kwargs.is_leaf() or args.type is not tuple or kwargs.type is not dict:
        return spec
    return pytree.TreeSpec(list, None, [*args.children(), *kwargs.children()])


__all__ = ["positional_spec"]
