"""Test a pass on random programs, and print the report on a wrong one.

``python examples/property_test.py`` checks a pass with a mistake, prints the smallest program on which it is wrong, and
then checks the pass without the mistake.
"""

import torch

import fx
from pytest_fx import LawViolation, check_pass


def drop_double_transposes(program: fx.GraphModule) -> fx.GraphModule:
    """Drop two transposes in a row, even if they exchange different dimensions, which is the mistake."""
    return without_transposes(program, always=True)


def drop_inverse_transposes(program: fx.GraphModule) -> fx.GraphModule:
    """Drop two transposes in a row that exchange the same dimensions."""
    return without_transposes(program, always=False)


def without_transposes(program: fx.GraphModule, always: bool) -> fx.GraphModule:
    """Replace the second of two transposes in a row by the input of the first."""
    for second in program.graph.find_nodes(op="call_function", target=torch.transpose):
        first, *dims = second.args
        if second.kwargs or first.target is not torch.transpose or first.kwargs:
            continue
        if always or set(dims) == set(first.args[1:]):
            second.replace_all_uses_with(first.args[0])
            program.graph.erase_node(second)
    program.recompile()
    return program


if __name__ == "__main__":
    try:
        check_pass(drop_double_transposes, seed=0)
    except LawViolation as violation:
        print(violation)
    print("right on", check_pass(drop_inverse_transposes, seed=0).programs, "programs")
