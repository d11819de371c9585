"""Everything that walks a program, one file each: passes that change it and analyses that read it (paper, section 6).

A pass is a callable that takes a :class:`~fx.graph_module.GraphModule`, edits it or makes another one, and returns
it. Ours are frozen dataclasses: the fields are the options, the docstring is the help, ``name`` is what the registry
knows it by and ``contract`` what it promises about the numbers.
"""

from fx.passes.contract import Approximate, Close, Contract, Exact, approximate, close, contract_of, exact
from fx.passes.dead_code import RemoveDeadCode
from fx.passes.fuse_conv_bn import FuseConvBN, Fusion
from fx.passes.registry import Pass, get_pass, list_passes, pass_name, register_pass
from fx.passes.remove_checks import RemoveChecks
from fx.passes.rewriting import Edit, RewritingPass

__all__ = [
    "Approximate",
    "Close",
    "Contract",
    "Edit",
    "Exact",
    "FuseConvBN",
    "Fusion",
    "Pass",
    "RemoveChecks",
    "RemoveDeadCode",
    "RewritingPass",
    "approximate",
    "close",
    "contract_of",
    "exact",
    "get_pass",
    "list_passes",
    "pass_name",
    "register_pass",
]
