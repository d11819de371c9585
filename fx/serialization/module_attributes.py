"""Which names attributes of modules may have in a file, and which of them a program in a file may read."""

from __future__ import annotations

from typing import Any

import torch

from fx.serialization.allow_list import Refused

LONGEST_NAME = 1000
"""Most characters that the name of a node or attribute may have in a file."""

PROGRAM_STATE = frozenset(
    {"_graph", "_written", "_code_revision", "_tracer_cls", "_tracer_extras", "meta", "_in_spec", "_out_spec"}
)
_PLAIN = (type(None), bool, int, float, complex, str, bytes, tuple, list, dict, slice, range, torch.Tensor, torch.dtype)
FRESH = torch.nn.Module()
"""What every module has."""


def is_name(text: object) -> bool:
    """Return whether ``text`` can name a node, class or attribute: short and printable."""
    return type(text) is str and 0 < len(text) <= LONGEST_NAME and text.isprintable()


def check_path(root: torch.nn.Module, op: str, path: str) -> None:
    """Refuse a path of a ``get_attr`` or ``call_module`` node that does not lead through submodules to data.

    Other attributes of modules, such as methods, lead to the rest of the process.
    """
    *parents, name = path.split(".")
    owner: Any = root
    for parent in parents:
        owner = owner._modules.get(parent)
        if owner is None:
            raise Refused(f"the path {path!r} leads through {parent!r}, where there is no submodule")
    if owner._modules.get(name) is not None:
        return
    if op == "get_attr":
        if owner._parameters.get(name) is not None or owner._buffers.get(name) is not None:
            return
        is_state = name in FRESH.__dict__ or name in PROGRAM_STATE
        if name == "training" and type(owner.training) is bool:  # which programs check that depend on it
            return
        if not is_state and isinstance(owner.__dict__.get(name, owner), _PLAIN):
            return
    kind = "submodule" if op == "call_module" else "parameter, buffer, submodule or attribute of its own"
    raise Refused(f"the path {path!r} leads to nothing", why=f"its owner has no {kind} called {name!r}")


def check_attribute(module: torch.nn.Module, name: Any) -> None:
    """Refuse a name of a parameter, buffer, submodule or attribute that means something else or breaks paths."""
    if not is_name(name) or "." in name:
        raise Refused(f"{ascii(name)[:80]} is not a name of an attribute")
    if hasattr(type(module), name) or name in FRESH.__dict__ or name in PROGRAM_STATE:
        raise Refused(f"the attribute {name!r} would hide one that every such module has")
