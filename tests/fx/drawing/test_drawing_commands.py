"""``python -m fx trace``, ``draw`` and ``diff``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import fx
from fx.__main__ import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert main(arguments) == status
    captured = capsys.readouterr()
    return captured.err if status else captured.out


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_trace_shows_each_node_with_its_line(capsys):
    lines = run(capsys, "trace", "resnet_tiny").splitlines()
    assert lines[0].split() == ["node", "operation", "shape", "line"]
    assert lines[2].split()[:3] == ["conv1", "Conv2d", "1x8x16x16"] and lines[2].split()[3].startswith("resnet.py:")
    assert lines[-1] == "67 nodes"


def test_trace_saves_the_program(capsys, tmp_path):
    run(capsys, "trace", "mlp", "--save", "mlp.fx")
    assert isinstance(fx.load(tmp_path / "mlp.fx"), fx.GraphModule)
    assert "placeholder" in run(capsys, "trace", "mlp.fx")


def test_trace_as_json_has_all_that_is_known(capsys):
    nodes = json.loads(run(capsys, "trace", "mlp", "--json"))["nodes"]
    assert nodes[0]["op"] == "placeholder" and {"target", "arguments", "shape", "file", "line"} <= nodes[0].keys()


def test_draw_writes_a_page_by_default(capsys, tmp_path):
    assert run(capsys, "draw", "resnet_tiny") == "ResNet.html: 67 nodes\n"
    assert '"name":"operations"' in (tmp_path / "ResNet.html").read_text("utf-8")


def test_draw_colours_by_the_cost_of_nodes(capsys, tmp_path):
    printed = run(capsys, "draw", "resnet_tiny", "--output", "net.svg", "--color", "operations", "--lines", "--json")
    text = (tmp_path / "net.svg").read_text("utf-8")
    assert json.loads(printed) == {"path": "net.svg", "bytes": len(text.encode()), "nodes": 67}
    assert "operations" in text and "FLOP" in text and "resnet.py:" in text
    assert "1x8x16x16 float32" in text


def test_draw_takes_figures_from_a_file(capsys, tmp_path):
    (tmp_path / "times.json").write_text('{"time": {"unit": "s", "values": {"conv1": 2e-4}}}')
    run(capsys, "draw", "resnet_tiny", "--output", "net.svg", "--color", "time", "--figures", "times.json")
    assert "200 µs" in (tmp_path / "net.svg").read_text("utf-8")
    (tmp_path / "times.json").write_text("[1]")
    printed = run(capsys, "draw", "resnet_tiny", "--figures", "times.json", status=2)
    assert printed.startswith("cannot read the figures in times.json\n  why    AttributeError: ")
    assert '  try    write {"time": {"unit": "s", "values": {"conv1": 2e-4}}}, or what cost or profile print' in printed


def test_draw_takes_facts_on_nodes_from_other_commands(capsys, tmp_path):
    (tmp_path / "costs.json").write_text(run(capsys, "cost", "resnet_tiny", "--json"))
    run(capsys, "draw", "resnet_tiny", "--output", "net.svg", "--color", "flops", "--figures", "costs.json")
    assert "flops, logarithmic: " in (tmp_path / "net.svg").read_text("utf-8")
    (tmp_path / "times.json").write_text(json.dumps({"nodes": [{"node": "conv1", "module": "", "seconds": 2e-4}]}))
    run(capsys, "draw", "resnet_tiny", "--output", "net.svg", "--color", "seconds", "--figures", "times.json")
    assert "200 µs" in (tmp_path / "net.svg").read_text("utf-8")


def test_draw_shows_passes(capsys, tmp_path):
    run(capsys, "draw", "resnet_tiny", "--pass", "fuse-conv-bn", "--output", "fused.html")
    assert '"summary":"fuse-conv-bn: 67 -> 47 nodes, 20 removed, 20 changed"' in (tmp_path / "fused.html").read_text()


def test_costs_need_inputs(capsys):
    printed = run(capsys, "draw", "torch.nn:ReLU", "--color", "bytes", status=2)
    assert printed == (
        "nodes cannot be coloured by bytes: there are no inputs to follow the program with\n"
        "  try    give --input 1x3x224x224, or a factory that returns a pair of a module and its inputs\n"
    )
    assert run(capsys, "draw", "torch.nn:ReLU") == "ReLU.html: 3 nodes\n"


def test_diff_shows_the_changes_of_each_pass(capsys, tmp_path):
    printed = run(
        capsys, "diff", "resnet_tiny", "--pass", "fuse-conv-bn", "--pass", "remove-dead-code,canonicalize",
        "--output", "both.svg",
    )  # fmt: skip
    parts = printed.strip().split("\n\n")
    assert [part.partition(":")[0] for part in parts] == ["fuse-conv-bn", "canonicalize", "changed nothing"]
    assert "- %bn1 = call_module[bn1](%conv1)" in parts[0] and parts[-1] == "changed nothing: remove-dead-code"
    assert max(map(len, printed.splitlines())) <= 80
    assert "before: 67 nodes" in (tmp_path / "both.svg").read_text()


def test_diff_as_json_has_the_sets(capsys):
    (difference,) = json.loads(run(capsys, "diff", "resnet_tiny", "--pass", "fuse-conv-bn", "--json"))
    assert difference["name"] == "fuse-conv-bn" and "bn1" in difference["removed"] and "conv1" in difference["changed"]
    assert difference["many_to_one"]["conv1"] == ["conv1", "bn1"]


def test_diff_gives_passes_that_take_data_the_inputs(capsys):
    assert "quantize" in run(capsys, "diff", "mlp", "--pass", "quantize").splitlines()[0]


def test_an_unknown_pass_is_refused_with_the_nearest(capsys):
    assert "fuse-conv-bn" in run(capsys, "diff", "mlp", "--pass", "fuse-conv", status=2)


@pytest.mark.parametrize("name", ["trace", "draw", "diff"])
def test_each_command_has_an_example(name, capsys):
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert f"example: python -m fx {name}" in " ".join(capsys.readouterr().out.split())
    assert torch.is_grad_enabled()
