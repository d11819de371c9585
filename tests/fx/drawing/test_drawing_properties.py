"""On random programs the changes of passes add up, and every picture is well formed and has all nodes."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter

import hypothesis
import hypothesis.strategies as st
from hypothesis import HealthCheck, given

import fx
from fx.drawing import draw, record_passes
from fx.errors import FxError
from pytest_fx.generation import programs

PASSES = (
    "canonicalize remove-checks merge-parallel-layers fuse-conv-bn eliminate-common-subexpressions fold-constants "
    "remove-identities fold-into-modules remove-dead-code"
).split()
MANY = hypothesis.settings().max_examples > 100
"""Whether a profile asks for more than Hypothesis's own number."""


@hypothesis.settings(
    max_examples=hypothesis.settings().max_examples if MANY else 5,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
@given(programs(), st.lists(st.sampled_from(PASSES), min_size=1, max_size=4))
def test_sets_of_nodes_add_up_and_pictures_hold_all_nodes(tmp_path, program, passes):
    try:
        captured = fx.symbolic_trace(program.build().eval())
        history = record_passes(captured, passes)
    except FxError:  # other tests cover programs that cannot be captured or transformed
        hypothesis.reject()
    for difference in (*history.differences, history.difference()):
        before, after = ([node.name for node in item.nodes] for item in (difference.before, difference.after))
        assert Counter([*difference.removed, *difference.kept]) == Counter(before)
        assert Counter([*difference.added, *difference.kept.values()]) == Counter(after)
        assert {*difference.changed, *difference.moved} <= difference.kept.keys()
        for names, ends in zip((before, after), zip(*difference.counterparts, strict=True), strict=False):
            assert set(ends) <= set(names)
        assert max(map(len, str(difference).splitlines())) <= 80
    page = draw(history, tmp_path / "page.html").read_text("utf-8")
    data = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert data and len(json.loads(data[1])["nodes"]) == len(history.order)
    text = draw(history, tmp_path / "picture.svg", fold=False).read_text("utf-8")
    drawn = Counter(re.findall(r"<title>%(\w+) = ", text))
    states = history.states[:: max(1, len(history.states) - 1)]
    assert drawn == Counter(node.name for state in states for node in state.program.nodes)
    ElementTree.fromstring(text)
