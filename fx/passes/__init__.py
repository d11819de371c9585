"""Passes, which change a program: one file each (paper, section 6). :mod:`fx.pipelines` runs them.

A pass is a callable that takes a :class:`~fx.graph_module.GraphModule`, edits it or makes another one, and returns
it. Ours are frozen dataclasses: the fields are the options, and the docstring is the help. ``name`` is the name in the
registry, and ``contract`` the promise about the program's numerical results.
"""

from fx.passes.canonicalize import Canonicalize
from fx.passes.common_subexpressions import EliminateCommonSubexpressions
from fx.passes.dead_code import RemoveDeadCode
from fx.passes.fold_constants import FoldConstants
from fx.passes.fold_into_modules import FoldIntoModules
from fx.passes.fuse_conv_bn import FuseConvBN
from fx.passes.merge_parallel_layers import MergeParallelLayers
from fx.passes.overlap import Overlap, OverlapCommunication
from fx.passes.remove_checks import RemoveChecks
from fx.passes.remove_identities import RemoveIdentities
from fx.passes.shape_prop import ShapeProp
from fx.passes.split_module import Split, split_by_nodes
from fx.pipelines.contract import Approximate, Close, Contract, Exact, approximate, close, contract_of, exact
from fx.pipelines.pipeline import Culprit, PassPipeline, PassReport, PipelineListener, PipelineResult
from fx.pipelines.registered_passes import (
    Pass,
    describe_pass,
    get_pass,
    list_passes,
    parse_pipeline,
    pass_name,
    register_pass,
)
from fx.pipelines.rewriting import Decision, Edit, RewritingPass
from fx.pipelines.verification import verify

__all__ = [
    "Approximate",
    "Canonicalize",
    "Close",
    "Contract",
    "Culprit",
    "Decision",
    "Edit",
    "EliminateCommonSubexpressions",
    "Exact",
    "FoldConstants",
    "FoldIntoModules",
    "FuseConvBN",
    "MergeParallelLayers",
    "Overlap",
    "OverlapCommunication",
    "Pass",
    "PassPipeline",
    "PassReport",
    "PipelineListener",
    "PipelineResult",
    "RemoveChecks",
    "RemoveDeadCode",
    "RemoveIdentities",
    "RewritingPass",
    "ShapeProp",
    "Split",
    "approximate",
    "close",
    "contract_of",
    "describe_pass",
    "exact",
    "get_pass",
    "list_passes",
    "parse_pipeline",
    "pass_name",
    "register_pass",
    "split_by_nodes",
    "verify",
]
