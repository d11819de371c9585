"""Everything that walks a program, one file each: passes that change it and analyses that read it (paper, section 6).

A pass is a callable that takes a :class:`~fx.graph_module.GraphModule`, edits it or makes another one, and returns
it. Ours are frozen dataclasses: the fields are the options, the docstring is the help, ``name`` is what the registry
knows it by and ``contract`` what it promises about the numbers.
"""

from fx.passes.contract import Approximate, Close, Contract, Exact, approximate, close, contract_of, exact
from fx.passes.registry import Pass, get_pass, list_passes, pass_name, register_pass

__all__ = [
    "Approximate",
    "Close",
    "Contract",
    "Exact",
    "Pass",
    "approximate",
    "close",
    "contract_of",
    "exact",
    "get_pass",
    "list_passes",
    "pass_name",
    "register_pass",
]
