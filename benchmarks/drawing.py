"""Drawings of programs of up to 50,000 nodes: seconds for layout and writing, file sizes, seconds of a browser.

If Graphviz is installed, it lays out the same picture, up to a time limit. If Chromium is installed, it opens the page.
"""

from __future__ import annotations

import operator
import random
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

import fx
from fx.drawing import record_passes
from fx.drawing.appearance import Labels
from fx.drawing.drawn_program import DrawnProgram
from fx.drawing.picture import Picture
from fx.drawing.svg import write_svg
from model_zoo import get_model

from .paired import parse

GOALS = {"layout s": 5.0, "page MB": 3.0, "browser s": 2.0}
"""Upper limits for 10,000 nodes."""
GRAPHVIZ_SECONDS = 60.0
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
COLUMNS = ("nodes", "read s", "rows s", "place s", "layout s", "svg MB", "page s", "page MB", "browser s", "Graphviz s")


class Block(nn.Module):
    """About 8 operations in one of five forms, so that few neighbours are equal."""

    def __init__(self, form: int) -> None:
        super().__init__()
        self.a, self.b, self.c, self.form = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), form

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x)
        for _ in range(self.form):
            y = torch.relu(y) * 2
        return x + self.b(y) * self.c(y)


class Stages(nn.Module):
    """Blocks in stages of twenty."""

    def __init__(self, nodes: int) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            nn.Sequential(*(Block((stage + number) % 5) for number in range(20))) for stage in range(nodes // 180)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for stage in self.stages:
            x = stage(x)
        return x


def flat(nodes: int) -> fx.GraphModule:
    """Return a chain without modules in which every third operation also reads one of the sixty before it."""
    draw, graph = random.Random(0), fx.Graph()
    values = [graph.placeholder("x")]
    for number in range(nodes):
        other = values[max(0, len(values) - 1 - draw.randrange(60))]
        if number % 3:
            values.append(graph.call_function(torch.relu, (values[-1],)))
        else:
            values.append(graph.call_function(operator.add, (values[-1], other)))
    graph.output(values[-1])
    return fx.GraphModule(nn.Module(), graph)


def programs(quick: bool) -> Iterator[tuple[str, Callable[[], fx.GraphModule]]]:
    for name in ("resnet_tiny", "bert_small") if quick else ("resnet50", "bert", "unet"):
        yield name, lambda name=name: fx.symbolic_trace(get_model(name).build())
    for nodes in (1_000,) if quick else (1_000, 10_000, 50_000):
        yield f"{nodes:,} in modules", lambda nodes=nodes: fx.symbolic_trace(Stages(nodes))
        yield f"{nodes:,} in a row", lambda nodes=nodes: flat(nodes)


def measured(program: fx.GraphModule, folder: Path) -> dict[str, float | None]:
    """Return the seconds and bytes for drawing a program."""
    clock = [time.perf_counter()]

    def lap() -> float:
        clock.append(time.perf_counter())
        return clock[-1] - clock[-2]

    drawn = DrawnProgram.of(program)
    read = lap()
    picture = Picture.of(drawn, fold=False)
    rows = lap()
    svg = write_svg(picture, Labels())
    place = lap()
    page = fx.draw(program, folder / "program.html")
    seconds = lap()
    return {
        "nodes": len(drawn.nodes),
        "read s": read,
        "rows s": rows,
        "place s": place,
        "layout s": rows + place,
        "svg MB": len(svg.encode()) / 1e6,
        "page s": seconds,
        "page MB": page.stat().st_size / 1e6,
        "browser s": browser_seconds(page, folder),
        "Graphviz s": graphviz_seconds(fx.draw(program, folder / "program.dot", fold=False)),
    }


def browser_seconds(page: Path, folder: Path) -> float | None:
    """Return the seconds from the start of the page until it is drawn; None if there is no browser."""
    if BROWSER is None:
        return None
    driven = folder / "driven.html"
    script = "<script>drawAll(); canvases[0].getContext('2d').getImageData(0, 0, 1, 1);\n"
    script += "document.title = `took ${performance.now()}`;</script>"
    driven.write_text(page.read_text("utf-8").replace("</body>", f"{script}</body>"), "utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,900", f"--user-data-dir={folder / 'p'}"]
    run = subprocess.run(
        [BROWSER, *flags, "--dump-dom", driven.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    match = re.search(r"<title>took ([\d.]+)</title>", run.stdout)
    return float(match[1]) / 1000 if match else None


def graphviz_seconds(path: Path) -> float | None:
    """Return the seconds of Graphviz for the same picture: infinity beyond the time limit, None if not installed."""
    if shutil.which("dot") is None:
        return None
    started = time.perf_counter()
    try:
        subprocess.run(["dot", "-Tsvg", str(path)], capture_output=True, timeout=GRAPHVIZ_SECONDS, check=True)
    except subprocess.TimeoutExpired:
        return float("inf")
    except subprocess.CalledProcessError:
        return None
    return time.perf_counter() - started


def cell(value: float | None) -> str:
    if value is None:
        return "-"
    if value == float("inf"):
        return f"over {GRAPHVIZ_SECONDS:.0f}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def main() -> None:
    """Print the tables."""
    options = parse(__doc__, rounds=1)
    print(f"{'program':<20}" + "".join(f"{name:>11}" for name in COLUMNS))
    with tempfile.TemporaryDirectory() as folder:
        for name, make in programs(options.quick):
            figures = measured(make(), Path(folder))
            print(f"{name:<20}" + "".join(f"{cell(figures[column]):>11}" for column in COLUMNS), flush=True)
            if name.startswith("10,000"):
                for column, goal in GOALS.items():
                    value = figures[column]
                    if value is not None:
                        print(f"  {column}: {value:.2f}, goal under {goal:g}: {'met' if value < goal else 'MISSED'}")
    name = "resnet_tiny" if options.quick else "resnet50"
    started = time.perf_counter()
    history = record_passes(fx.symbolic_trace(get_model(name).build()), "fuse-conv-bn,canonicalize,remove-checks")
    print(f"{name} through {len(history.reports)} passes, recorded: {time.perf_counter() - started:.2f} s")


if __name__ == "__main__":
    main()
