"""Twenty faults, planted in blocks of known models: each is blamed on its node and line, in a file that fails alone."""

import os
import re
from pathlib import Path

import pytest
from passes_with_faults import PLANTED
from selection import thorough_except

HERE = Path(__file__).parent
QUICK = ("LinearToMatmul", "approximate_gelu")


def told_of(pytester, name):
    """Return the printed report of a fault: the node, the lines below it, and the path of the test that shows it."""
    pytester.makepyfile(
        **{
            module: HERE.joinpath(f"{module}.py").read_text("utf-8")
            for module in ("passes_with_faults", "planted_models")
        }
    )
    options = ("--fx-model", PLANTED[name].model, "--fx-pass", f"passes_with_faults:{name}")
    result = pytester.runpytest(*options, "--fx-no-timing", "-k", "test_pass_keeps_its_contract")
    assert result.ret == 1
    output = "\n".join(line.removeprefix("E").strip() for line in result.outlines)
    node = re.search(r"the first node that goes wrong:\n(.*?)\na test of", output, re.DOTALL)
    test = re.search(r"that shows it alone:\s+(\S+)", output)
    return output, node and re.sub(r"\s+", " ", node[1]), test and pytester.path / test[1]


@pytest.mark.parametrize("name", thorough_except(QUICK, PLANTED))
def test_a_planted_fault_is_blamed_on_its_node_and_line_and_shown_alone(pytester, name):
    fault = PLANTED[name]
    text, node, test = told_of(pytester, name)
    assert node is not None, text
    assert any(words in node.partition(" where ")[0] for words in fault.nodes), node
    assert any(line in node for line in fault.lines), node
    assert test is not None, text
    os.chdir(pytester.mkdir("elsewhere"))
    pytester.runpytest("-p", "no:cacheprovider", test).assert_outcomes(failed=1)
