"""The speed of analyses, checks and transforms, by operation of programs of increasing length."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.fx.passes import shape_prop as torch_shape_prop
from torch.fx.passes import split_module as torch_split_module
from torch.fx.passes.dialect.common.cse_pass import CSEPass

from fx import passes
from fx.analysis.dependence import Dependences
from fx.passes.shape_prop import ShapeProp
from fx.passes.split_module import split_module
from fx.pipelines.verification import verify

from .paired import LIBRARIES, Contender, Table, parse, sizes
from .programs import effects_module, pairs_module, parallel_layers, repeated_module

Make = Callable[..., Any]


def split_in_ten(split: Callable[..., Any], program: Any) -> None:
    """Divide a program into ten parts of equal length."""
    position = {node: number for number, node in enumerate(program.graph.nodes)}
    split(program, program, lambda node: position[node] * 10 // len(position))


def ask(program: Any) -> None:
    """Compute the dependences and query them for every node."""
    nodes = list(program.graph.nodes)
    dependences = Dependences(program.graph)
    for first, second in zip(nodes, nodes[2:], strict=False):
        dependences.why_not_drop(first)
        dependences.why_not_move(second, first)
        dependences.why_not_merge(first, second)
        dependences.why_not_fuse((first, second))


def main() -> None:
    """Print the table."""
    options = parse(__doc__, rounds=11)
    table = Table(*LIBRARIES)
    x = torch.ones(1)
    rows: tuple[tuple[str, Make, dict[str, Callable[[Any], object]]], ...] = (
        ("effects and dependences", effects_module, {"fx": lambda program: Dependences(program.graph)}),
        ("the same, asked four questions a node", effects_module, {"fx": ask}),
        ("verify all rules", pairs_module, {"fx": verify}),
        # ours also removes writes that are never read, which requires the dependences
        ("remove-dead-code", pairs_module, {"torch.fx": _eliminate, "fx": passes.RemoveDeadCode()}),
        (
            "eliminate-common-subexpressions",
            repeated_module,
            {"torch.fx": CSEPass(), "fx": passes.EliminateCommonSubexpressions()},
        ),
        ("fold-constants", repeated_module, {"fx": passes.FoldConstants()}),
        ("remove-identities", pairs_module, {"fx": passes.RemoveIdentities()}),
        ("canonicalize", pairs_module, {"fx": passes.Canonicalize()}),
        ("merge-parallel-layers", parallel_layers, {"fx": passes.MergeParallelLayers()}),
        (
            "split_module into ten",
            pairs_module,
            {
                "torch.fx": partial(split_in_ten, torch_split_module.split_module),
                "fx": partial(split_in_ten, split_module),
            },
        ),
        (
            "ShapeProp by running",
            pairs_module,
            {
                "torch.fx": lambda program: torch_shape_prop.ShapeProp(program).propagate(x),
                "fx": lambda program: ShapeProp(program).propagate(x),
            },
        ),
        ("a pipeline of remove-dead-code", pairs_module, {"fx": passes.PassPipeline("remove-dead-code").run}),
    )
    for size in sizes(options):
        for name, make, works in rows:
            contenders = {
                label: Contender(work, partial(make, LIBRARIES[label], size)) for label, work in works.items()
            }
            goal = "at most 1, flat" if "torch.fx" in works and name != "remove-dead-code" else "flat"
            table.measure_operations(name, size, contenders, rounds=options.rounds, goal=goal)


def _eliminate(program: Any) -> None:
    if program.graph.eliminate_dead_code():
        program.recompile()


if __name__ == "__main__":
    main()
