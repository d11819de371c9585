"""The speed of writing graphs as code, and of compiling, copying and pickling modules."""

from __future__ import annotations

import copy
import pickle
from typing import Any

from model_zoo import get_model

from .paired import LIBRARIES, Table, each, parse, sizes
from .programs import chain_graph


def write(graph: Any) -> Any:
    """Convert a graph to text."""
    return graph.python_code("self")


def compile_text(source: str) -> Any:
    """Compile text to a code object."""
    return compile(source, "<chain>", "exec")


def compiled(module: Any) -> Any:
    """Compile the forward, which fx otherwise does on first use."""
    return type(module).forward


def recompile(module: Any) -> Any:
    """Generate and compile the forward of a module."""
    module.recompile()
    return compiled(module)


def write_chains(table: Table, lengths: list[int], rounds: int) -> None:
    """Measure graph to text, text to code object, and both into a module, by operation."""
    for size in lengths:
        graphs = {label: chain_graph(library, size) for label, library in LIBRARIES.items()}
        sources = {label: write(graph).src for label, graph in graphs.items()}
        modules = {label: library.GraphModule({}, graphs[label]) for label, library in LIBRARIES.items()}
        rows = (
            ("python_code", each(write, graphs), "0.5 (5 µs)"),
            ("compile()", each(compile_text, sources), "1"),
            ("recompile", each(recompile, modules), "0.75 (15 µs)"),
        )
        for name, contenders, goal in rows:
            table.measure_operations(name, size, contenders, rounds=rounds, goal=goal)


def whole_model(table: Table, name: str, rounds: int) -> None:
    """Time code generation of a captured model; with meta tensors for weights, only the program itself counts."""
    root = get_model(name).build()
    modules = {label: library.symbolic_trace(root) for label, library in LIBRARIES.items()}
    weightless = {label: library.symbolic_trace(copy.deepcopy(root).to("meta")) for label, library in LIBRARIES.items()}
    for module in (*modules.values(), *weightless.values()):
        compiled(module)
    stored = {label: pickle.dumps(module) for label, module in modules.items()}
    stored_weightless = {label: pickle.dumps(module) for label, module in weightless.items()}
    rows = (
        ("recompile", each(recompile, modules), "at most 1"),
        ("recompile, never run", each(lambda module: module.recompile(), modules), ""),
        ("deepcopy", each(copy.deepcopy, modules), "at most 1"),
        ("deepcopy, no weights", each(copy.deepcopy, weightless), "at most 1"),
        ("pickle.dumps", each(pickle.dumps, modules), "at most 1"),
        ("pickle.dumps, no weights", each(pickle.dumps, weightless), "at most 1"),
        ("pickle.loads", each(pickle.loads, stored), "at most 0.5"),
        ("pickle.loads, no weights", each(pickle.loads, stored_weightless), "at most 0.5"),
    )
    for what, contenders, goal in rows:
        table.measure(f"{what}, {name}", contenders, rounds=rounds, goal=goal)


def main() -> None:
    """Print the table."""
    options = parse(__doc__, rounds=21)
    table = Table(*LIBRARIES)
    write_chains(table, sizes(options), options.rounds)
    whole_model(table, "resnet50", options.rounds)


if __name__ == "__main__":
    main()
