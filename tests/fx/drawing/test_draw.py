"""fx.draw: a program as SVG, as DOT text, and by Graphviz."""

from __future__ import annotations

import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch
from drawn_models import Blocks, captured, each_kind
from torch import nn

import fx
from fx.drawing import Figure, record_passes
from fx.errors import DrawingError
from fx.naming import dot_text

HOSTILE = '<script>alert("&amp;")</script> {a|b} \\ \x00\x1b\udcff ]]> --> %s'


def svg(program: fx.GraphModule, tmp_path: Path, **options: object) -> str:
    text = fx.draw(program, tmp_path / "program.svg", **options).read_text("utf-8")  # type: ignore[arg-type]
    ElementTree.fromstring(text)
    return text


def words(text: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")]


def hostile() -> fx.GraphModule:
    """A program whose names and arguments have a meaning in XML, DOT and JavaScript."""
    program = fx.symbolic_trace(Blocks(1))
    relu = program.graph.find_nodes(op="call_function", target=torch.relu)[0]
    relu.name = HOSTILE
    relu.args = (relu.args[0], HOSTILE)
    return program


def test_every_node_is_drawn_with_its_target_and_its_name(tmp_path):
    text = svg(captured("unet_small"), tmp_path)
    written_words = words(text)
    for node in captured("unet_small").graph.nodes:
        assert node.name in written_words
    assert {"Conv2d", "max_pool2d", "cat", "down.0  DoubleConvolution"} <= set(written_words)


def test_the_same_program_is_the_same_file(tmp_path):
    assert svg(captured("bert_small"), tmp_path) == svg(captured("bert_small"), tmp_path)


def test_the_program_stays_as_it_is(tmp_path):
    program = fx.symbolic_trace(Blocks(2))
    revision, notes = program.graph.revision, [dict(node.meta) for node in program.graph.nodes]
    svg(program, tmp_path, inputs=[torch.ones(2, 4)], lines=True)
    assert program.graph.revision == revision
    assert [dict(node.meta) for node in program.graph.nodes] == notes


def test_shapes_and_lines_are_drawn_where_asked(tmp_path):
    program = fx.symbolic_trace(Blocks(2))
    plain, full = svg(program, tmp_path), svg(program, tmp_path, inputs=[torch.ones(2, 4)], lines=True)
    assert "2x8 float32" not in words(plain) and "2x8 float32" in words(full)
    assert not [word for word in words(plain) if word.startswith("drawn_models.py:")]
    assert [word for word in words(full) if word.startswith("drawn_models.py:")]


def test_opcodes_can_be_distinguished_without_colour(tmp_path):
    text = svg(fx.symbolic_trace(each_kind()), tmp_path)
    without = re.sub(r'(fill|stroke)="#\w+"', "", text)
    matches = re.findall(r'height="\d+"( rx[^>]*/>(?:\n<path[^>]*>)?)\n<text[^>]*bold"[^>]*>([^<]+)', without)
    boxes = {name: re.sub(r'd="[^"]+"', "", box) for box, name in matches}
    assert {"x", "weight", "Linear", "relu", ".neg()", "output"} <= boxes.keys()
    assert len({boxes["x"], boxes["weight"], boxes["Linear"], boxes["relu"]}) == 4
    assert ".neg()" in words(text)


def test_a_figure_colours_nodes_and_is_written(tmp_path):
    program = fx.symbolic_trace(Blocks(1))
    relu = program.graph.find_nodes(op="call_function", target=torch.relu)[0]
    time = Figure("time", "s", {relu: 0.002, "add": 0.001})  # type: ignore[dict-item]
    text = svg(program, tmp_path, figures=[time], color="time")
    assert {"2 ms", "1 ms", "time: 0 s"} <= set(words(text))
    fill = {name: color for color, name in re.findall(r'fill="(#\w+)"[^>]*/>\n<text[^>]*>([^<]+)', text)}
    assert (fill["relu"], fill["add"]) == ("#ef6548", "#fdbb84")


def test_numbers_that_differ_by_magnitudes_are_coloured_by_their_logarithm(tmp_path):
    error = Figure("error", "", {"relu": 1e-9, "add": 1e-3})
    assert error.is_logarithmic
    text = svg(fx.symbolic_trace(Blocks(1)), tmp_path, figures=[error], color="error")
    assert {"error, logarithmic: 1e-09", "1e-09", "0.001"} <= set(words(text))
    spread = Figure("error", "", {"a": 1e-9, "b": 1e-6, "c": 1e-3, "d": 0.0, "e": float("inf")})
    assert list(spread.fills().values()) == ["#fff7ec", "#fdbb84", "#ef6548", "#fff7ec", "#ef6548"]


def test_hostile_names_do_no_harm(tmp_path):
    text = svg(hostile(), tmp_path)
    assert "<script" not in text
    text_of_picture = "".join(ElementTree.fromstring(text).itertext())
    assert 'alert("&amp;")</script> {a|b} \\' in text_of_picture and "□" in text_of_picture


def test_dot_text_has_clusters_nodes_and_edges(tmp_path):
    text = fx.draw(fx.symbolic_trace(Blocks(4)), tmp_path / "program.dot").read_text("utf-8")
    assert 'label="blocks.0 … blocks.3  Block × 4"' in text
    assert re.search(r'n2 \[label="relu"', text) and "n1 -> n2;" in text


def test_dot_text_escapes_names():
    assert dot_text.quoted('a"\n\\n\r<b>') == '"a\\"\\n\\\\n <b>"'
    assert dot_text.record_field("{<a>|b}\\") == "\\{\\<a\\>\\|b\\}\\\\"


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_makes_a_picture_of_hostile_names(tmp_path):
    assert fx.draw(hostile(), tmp_path / "program.png").read_bytes().startswith(b"\x89PNG")


def test_without_graphviz_the_message_names_a_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(dot_text.shutil, "which", lambda program: None)
    with pytest.raises(DrawingError) as caught:
        fx.draw(fx.symbolic_trace(Blocks(1)), tmp_path / "program.png")
    assert str(caught.value) == (
        "a file in the format png needs Graphviz, whose command 'dot' is not on the path\n"
        "  try    install Graphviz (apt install graphviz, brew install graphviz), or write .svg or .html, which need "
        "nothing: fx.draw(program, 'program.svg')"
    )
    assert not (tmp_path / "program.png").exists()


def test_an_error_of_graphviz_is_shown(monkeypatch):
    if shutil.which("dot") is None:
        pytest.skip("Graphviz is not installed")
    with pytest.raises(DrawingError, match=r"Graphviz refused the graph\n  why    .*syntax error"):
        dot_text.run_graphviz(b"digraph { a -> }", "svg")


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"path": "a.bmp"},
            "cannot draw a file that ends in '.bmp'\n  value  a.bmp\n  try    let it end in one of .svg, ",
        ),
        ({"path": "program"}, "'program' does not say which format it has\n  value  program"),
        (
            {"color": "time"},
            "there is no figure 'time' to colour nodes by\n  why    no figures are given\n"
            '  try    color="opcode", or give it: figures=[fx.drawing.Figure("time", "s", {"relu": 1e-5})]',
        ),
        ({"figures": [3]}, "an element of 'figures' of draw is a Figure, not an int"),
        ({"figures": [Figure("time", "s", {"relu": "long"})]}, "the figure 'time' has a number for each node"),  # type: ignore[dict-item]
        ({"figures": [Figure("time", "s", {3: 1.0})]}, "the figure 'time' is by nodes or their names"),  # type: ignore[dict-item]
        ({"path": 3}, "'path' of draw is a str or a PathLike, not an int"),
    ],
)
def test_undrawable_requests_are_refused(options, message):
    with pytest.raises(DrawingError) as caught:
        fx.draw(**{"program": fx.symbolic_trace(Blocks(1)), "path": "program.svg", **options})
    assert str(caught.value).startswith(message)


def test_a_module_is_refused_with_a_remedy():
    with pytest.raises(
        DrawingError,
        match=r"(?s)'program' of draw is a GraphModule or a PassHistory, not a ReLU.*fx.symbolic_trace\(module\)",
    ):
        fx.draw(torch.nn.ReLU(), "program.svg")  # type: ignore[arg-type]


def fused(tmp_path: Path, name: str = "resnet_tiny") -> str:
    history = record_passes(captured(name), "fuse-conv-bn")
    return fx.draw(history, tmp_path / "fused.svg").read_text("utf-8")


def boxes(text: str) -> dict[str, set[tuple[str, str]]]:
    """Return, for each node's name, its places in the panes that contain it."""
    by_key: dict[str, set[tuple[str, str]]] = {}
    for pane in re.split(r'<g transform="', text)[1:]:
        for x, y, name in re.findall(
            r'<title>%.*?<rect x="([\d.]+)" y="([\d.]+)".*?fill="#222">(\w+)<', pane, re.DOTALL
        ):
            by_key.setdefault(name, set()).add((x, y))
    return by_key


def test_before_and_after_are_side_by_side_and_untouched_nodes_keep_their_place(tmp_path):
    text = fused(tmp_path)
    ElementTree.fromstring(text)
    places = boxes(text)
    assert len(places) > 40 and all(len(positions) == 1 for positions in places.values())
    assert {"before: 67 nodes", "fuse-conv-bn: 67 -> 47 nodes, 20 removed, 20 changed"} <= set(words(text))
    before, after = re.split(r'<g transform="', text)[1:]
    assert ">bn1<" in before and ">bn1<" not in after
    assert before.count('r="6.5" fill="#c0392b"') == before.count(">BatchNorm2d<") and ">-</text>" in before


def test_changes_of_passes_are_in_dot_text_too(tmp_path):
    text = fx.draw(record_passes(captured("resnet_tiny"), "fuse-conv-bn"), tmp_path / "fused.dot").read_text("utf-8")
    assert re.search(r'label="~ Conv2d\\nconv1"', text) and "bn1" not in text


def test_passes_that_change_nothing_leave_one_drawing(tmp_path):
    text = fx.draw(record_passes(captured("mlp"), "overlap"), tmp_path / "same.svg").read_text("utf-8")
    assert len(re.findall(r"<g transform", text)) == 1


def test_captions_of_narrow_programs_are_beside_each_other(tmp_path):
    history = record_passes(
        fx.symbolic_trace(nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)).eval()), "fuse-conv-bn"
    )
    text = fx.draw(history, tmp_path / "narrow.svg").read_text("utf-8")
    panes = re.findall(r'<g transform="translate\(([\d.]+) [\d.]+\)">\n<text x="([\d.]+)"[^>]*>([^<]*)', text)
    spans = [(float(x) + float(middle), len(label) * 6.0 / 2) for x, middle, label in panes]
    (first, half), (second, other_half) = spans
    assert first + half < second - other_half and first - half > 0


def test_titles_of_modules_are_before_the_edges_that_run_through_them(tmp_path: Path) -> None:
    text = svg(fx.symbolic_trace(Blocks(3)), tmp_path, fold=False)
    edges = text.index('fill="none" stroke="#7f8c8d"')
    title = re.search(r"<text ([^>]*)>blocks", text)
    assert title is not None and title.start() > edges
    assert 'stroke="#fafafa"' in title[1] and 'paint-order="stroke"' in title[1]
