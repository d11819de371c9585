"""``ir-complexity``: the sizes of models in each representation (paper, section 6.1, figure 5)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
import torch.fx
from torch.fx.proxy import TraceError

import fx
from fx.errors import TraceError as CaptureRefusal
from fx.passes import RemoveChecks
from model_zoo import get_model
from pytest_fx.harness.capture import capture, capture_without_leaves
from pytest_fx.tables.table import Chart, Claim, Column, NotRun, Row, Scale, Series, Table, register_table

Size = Mapping[str, int]
_MODELS = (
    "resnet50", "bert", "deep_recommender", "dlrm", "gpt2", "learning_to_paint_actor", "learning_to_paint_critic",
    "learning_to_paint_renderer", "llama", "lstm_classifier", "mlp", "transformer_encoder", "two_heads", "unet", "vit",
)  # fmt: skip
"""The models of the zoo at full size; those of the paper come first."""


def _rows(scale: Scale) -> Sequence[Row]:
    is_full = scale.size == "full"
    names = _MODELS if is_full else _MODELS[:2]
    models = {name: name if is_full else get_model(name).small or name for name in names}
    measures: dict[str, Callable[[str], Size]] = {
        "fx, no leaf modules": _without_leaves,
        "fx": _with_leaves,
        "torch.fx, no leaf modules": _torch_fx_without_leaves,
        "torch.fx": _torch_fx,
        "torch.export": partial(_in_new_process, _exported),
        "torch.jit.trace": partial(_in_new_process, _jit_traced),
        "torch.jit.script": partial(_in_new_process, _jit_scripted),
    }
    return [
        Row(f"{model}, {name}", partial(measure, model), stands_for="" if is_full else f"{full}, {name}")
        for full, model in models.items()
        for name, measure in measures.items()
    ]


def _without_leaves(model: str) -> Size:
    try:
        return _size(RemoveChecks()(capture_without_leaves(get_model(model).build())).graph)
    except CaptureRefusal as error:
        raise NotRun(str(error).splitlines()[0]) from None


def _with_leaves(model: str) -> Size:
    return _size(capture(get_model(model).build()).graph)


def _torch_fx_without_leaves(model: str) -> Size:
    tracer = torch.fx.Tracer()
    tracer.is_leaf_module = lambda m, module_qualified_name: False
    try:
        return _size(tracer.trace(get_model(model).build()))
    except (TraceError, TypeError) as error:
        raise NotRun(f"{type(error).__name__}: {error}") from None


def _torch_fx(model: str) -> Size:
    try:
        return _size(torch.fx.symbolic_trace(get_model(model).build()).graph)
    except (TraceError, TypeError) as error:
        raise NotRun(f"{type(error).__name__}: {error}") from None


def _exported(model: str) -> Size:
    zoo_model = get_model(model)
    return _size(torch.export.export(zoo_model.build(), zoo_model.example_inputs()).graph)


def _jit_traced(model: str) -> Size:
    zoo_model = get_model(model)
    return _script_size(torch.jit.trace(zoo_model.build(), zoo_model.example_inputs()))


def _jit_scripted(model: str) -> Size:
    return _script_size(torch.jit.script(get_model(model).build()))


def _in_new_process(measure: Callable[[str], Size], model: str) -> Size:
    """Measure in a new process, since these front ends leave state behind that slows later captures."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        try:
            return process.submit(_without_warnings, measure, model).result()
        except (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError) as error:
            first_line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
            raise NotRun(f"{type(error).__name__}: {first_line}") from None


def _without_warnings(measure: Callable[[str], Size], model: str) -> Size:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations of these front ends, and warnings on the model
        return measure(model)


def _size(graph: fx.Graph | torch.fx.Graph) -> Size:
    return {"nodes": len(list(graph.nodes)), "lines": len(str(graph).splitlines())}


def _script_size(program: Any) -> Size:
    """Return the sizes of the inlined graph: its nodes, including those in nested blocks, and its lines."""
    graph = program.inlined_graph
    unvisited, nodes = list(graph.nodes()), 0
    while unvisited:
        node = unvisited.pop()
        nodes += 1
        for block in node.blocks():
            unvisited += list(block.nodes())
    return {"nodes": nodes, "lines": len(str(graph).splitlines())}


register_table(
    Table(
        name="ir-complexity",
        title="IR complexity",
        section="section 6.1, figure 5",
        protocol=(
            "The paper does not say which operations it counts. Its numbers fit the lines of the printed program. For "
            "fx this number is reproduced exactly: a header, 443 nodes and the return statement, which is the 444th "
            "node. The model is in evaluation mode.\n\n"
            "- *fx, no leaf modules*: layers are captured down to functions. Then the pass `remove-checks` removes "
            "the recorded checks of batch norm, at which torch.fx stops.\n"
            "- TorchScript: graphs are inlined, and nodes inside of blocks count.\n"
            "- fx, torch.fx and torch.export: all nodes of the graph count, also inputs, parameters and output.\n\n"
            "If a front end refuses a model, its row has the error message."
        ),
        claims=(
            Claim(
                "For a canonical ResNet50 model, torch.fx IR contains 445 operations compared to 2614 for "
                "torch.jit.script and 860 for torch.jit.trace.",
                "445, 2614, 860",
                {
                    "resnet50, fx, no leaf modules": "fx {lines:,} lines ({nodes:,} nodes)",
                    "resnet50, torch.jit.script": "torch.jit.script {lines:,}",
                    "resnet50, torch.jit.trace": "torch.jit.trace {lines:,}",
                },
            ),
        ),
        rows=_rows,
        columns=(
            Column("nodes", "{nodes:,}"),
            Column("lines", "{lines:,}"),
            Column("the paper", "{paper_lines:,}"),
        ),
        chart=Chart(
            title="The same models in each representation",
            axis="lines of the printed representation (fewer is simpler)",
            series=(Series("here", "lines", "ours"), Series("the paper", "paper_lines", "paper")),
            template="{:,}",
            rows="^(resnet|bert|llama)",
        ),
        paper={
            "resnet50, fx, no leaf modules": {"lines": 445},
            "resnet50, torch.jit.trace": {"lines": 860},
            "resnet50, torch.jit.script": {"lines": 2614},
        },
    )
)
