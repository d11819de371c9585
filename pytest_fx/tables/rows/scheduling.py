"""``scheduling``: the speed-up of overlapping fetches from a parameter server with local work (section 6.2.3)."""

from __future__ import annotations

import copy
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import fx
from fx import GraphModule, Node
from fx.passes import OverlapCommunication, ShapeProp
from model_zoo.dlrm import DLRM, clicks
from model_zoo.zoo_model import seeded
from pytest_fx.processes.child import Channel, Child, Limits
from pytest_fx.tables import pairs, parameter_server
from pytest_fx.tables.estimates import Estimator
from pytest_fx.tables.parameter_server import RemoteTable, parameter_servers, start_fetch, wait_for_vectors
from pytest_fx.tables.table import Chart, Claim, Column, NotRun, Row, Scale, Series, Table, Timeline, register_table
from pytest_fx.timing.clock import unprofiled
from pytest_fx.timing.paired import median_interval

_SERVER = "tables"
_NUMBERS, _WIDTH, _TOP = 13, 64, 512
"""Numeric features, the length of a vector, and the width of the top network, as in the zoo's model."""
_QUERIES = 32
"""Distinct queries, which each program gets one after the other."""
_IN_A_SAMPLE = 8
"""Queries in each sample."""
_PAUSE = 0.02
"""Milliseconds between two operations below which a timeline merges them."""
_LIMIT = 300.0
"""Seconds that a row may take."""

Query = tuple[Tensor, Tensor]


def _rows(scale: Scale) -> Sequence[Row]:
    if scale.size == "full":
        shapes = [(8, 100_000, 2048), (8, 1_000, 2048), (8, 500_000, 2048), (1, 100_000, 2048), (4, 100_000, 2048)]
        shapes += [(8, 100_000, 64), (8, 100_000, 8192)]
        rows = [_row(scale, 128, *shape) for shape in shapes]
        return [*rows, _row(scale, 128, *shapes[0], in_flight=4)]
    small = _row(scale, 2, 3, 30, 16)
    return [
        replace(small, stands_for="8 tables of 100,000 rows, bottom 2048"),
        _row(scale, 2, 3, 30, 16, in_flight=2),
    ]


def _row(scale: Scale, batch: int, tables: int, rows: int, bottom: int, in_flight: int | None = None) -> Row:
    settings = {"tables": tables, "rows": rows, "bottom": bottom, "batch": batch, "in_flight": in_flight or tables}
    settings |= {
        "estimated": scale.size == "full",
        "threads": 1,
        "dtype": "float32",
        "rounds": scale.rounds,
        "seed": scale.seed,
    }
    name = f"{tables} table{'s' * (tables != 1)} of {rows:,} rows, bottom {bottom}"
    name += f", {in_flight} in flight" if in_flight else ""
    return Row(name, partial(_measure, settings), settings, timed=True)


def _measure(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Measure in a new process, since a process can join a ``torch.distributed.rpc`` group only once."""
    if (why := parameter_server.unavailable()) is not None:
        raise NotRun(f"not run: {why}")
    with Child(partial(_measure_as_client, settings)) as client:
        return json.loads(client.receive(Limits(seconds=_LIMIT)))


def _measure_as_client(settings: Mapping[str, Any], own: Channel) -> None:
    torch.set_num_threads(settings["threads"])
    sizes = [settings["rows"]] * settings["tables"]
    with seeded(settings["seed"]):
        local = DLRM(_NUMBERS, sizes, _WIDTH, settings["bottom"], _TOP).eval()
    make = clicks(_NUMBERS, sizes)
    queries = [make(settings["batch"], settings["seed"] + number) for number in range(_QUERIES)]
    tables = {str(number): bag for number, bag in enumerate(local.embeddings)}
    with torch.no_grad(), parameter_servers({_SERVER: tables}):
        remote = _with_tables(local, [RemoteTable(_SERVER, name, _WIDTH) for name in tables])
        before = fx.symbolic_trace(remote)
        ShapeProp(before).propagate(*queries[0])  # the pass needs sizes to count bytes
        overlap = OverlapCommunication(in_flight=settings["in_flight"])
        after = overlap(copy.deepcopy(before))
        same = sum(_is_same(local, before, after, query) for query in queries)
        if same != len(queries):  # time no program whose results differ
            raise AssertionError(f"{same} of {len(queries)} queries have the same result")
        at_hand = [_AtHand(table(queries[0][1][:, number])) for number, table in enumerate(local.embeddings)]
        work = fx.symbolic_trace(_with_tables(local, at_hand))
        programs: dict[str, Callable[..., Any]] = {"before": before, "after": after, "work": work}
        programs |= {"fetches": partial(_fetch_all, list(tables)), "fetch": partial(_fetch_all, list(tables)[:1])}
        timed = _time(programs, queries, settings)
        timeline = {
            name: _TimedRun(program).timeline(queries[0]) for name, program in (("before", before), ("after", after))
        }
        predicted = _predicted(work, before, after, queries[0], timed) if settings["estimated"] else {}
        values = {**timed, **predicted, **_moved(overlap, before), "same": same, "timeline": timeline}
        own.send(json.dumps(values).encode())


def _predicted(
    work: GraphModule, before: GraphModule, after: GraphModule, query: Query, timed: Mapping[str, Any]
) -> Mapping[str, float]:
    """Return the estimated seconds of a query before and after the pass, without times of either program."""
    alone, together = (statistics.median(timed[name]) / _IN_A_SAMPLE for name in ("fetch", "fetches"))
    times = FetchTimes(
        alone, together / len(before.graph.find_nodes(op="call_function", target=parameter_server.fetch))
    )
    estimated = _estimated(work, query)
    return {"predicted_before": times.of(before, estimated), "predicted_after": times.of(after, estimated)}


def _estimated(work: GraphModule, query: Query) -> Mapping[str, float]:
    """Return the seconds of each operation but the fetches by ``simulate``, each kernel measured once."""
    _, estimated = Estimator().both(work, query)
    return {estimate.node.name: estimate.seconds for estimate in estimated.nodes if estimate.node is not None}


@dataclass(frozen=True, slots=True)
class FetchTimes:
    """Times of fetches from one server, which answers them one after the other."""

    alone: float
    """Seconds of a single fetch, from the call to the vectors."""
    served: float
    """Seconds between the vectors of two consecutive fetches, if many are started at once."""

    def of(self, program: GraphModule, seconds: Mapping[str, float]) -> float:
        """Return the seconds of a query, from ``seconds`` of each operation by name and the times of fetches.

        >>> import fx
        >>> from pytest_fx.tables.parameter_server import start_fetch, wait_for_vectors
        >>> graph = fx.Graph()
        >>> futures = [graph.call_function(start_fetch, ()) for _ in range(2)]
        >>> work = graph.call_function(torch.relu, (), name="relu")
        >>> _ = graph.output([work, *(graph.call_function(wait_for_vectors, (each,)) for each in futures)])
        >>> FetchTimes(alone=5.0, served=2.0).of(fx.GraphModule({}, graph), {"relu": 6.0})
        7.0
        """
        now = free = 0.0
        ready: dict[Node, float] = {}
        for node in program.graph.nodes:
            if node.target in (start_fetch, parameter_server.fetch):
                ready[node] = free = max(now + self.alone, free + self.served)
            if node.target in (wait_for_vectors, parameter_server.fetch):
                now = max([now, *(ready[used] for used in (node, *node.all_input_nodes) if used in ready)])
            now += seconds.get(node.name, 0.0)
        return now


class _TimedRun(fx.Interpreter):
    """An interpreter that records the begin and end of each operation."""

    def __init__(self, program: GraphModule) -> None:
        super().__init__(program)
        self.events: list[tuple[str, float, float]] = []
        self._began: dict[Node, float] = {}

    def run_node(self, n: Node) -> Any:
        """Run one node; a fetch lasts from its start to the end of the wait."""
        begin = time.perf_counter()
        result = super().run_node(n)
        end = time.perf_counter()
        if n.target is start_fetch:
            self._began[n] = begin
            self.events.append(("start", begin, end))
        elif n.target in (parameter_server.fetch, wait_for_vectors):
            started = next((self._began[used] for used in n.all_input_nodes if used in self._began), begin)
            self.events += [("fetch", started, end), ("wait", begin, end)]
        elif n.op.startswith("call"):
            self.events.append(("work", begin, end))
        return result

    def timeline(self, query: Query) -> list[tuple[str, float, float]]:
        """Run one query; return its events in milliseconds from the start, with work merged across short pauses."""
        self.run(*query)  # the first run in a process is slower
        self.events.clear()
        with unprofiled():
            start = time.perf_counter()
            self.run(*query)
        pieces: list[tuple[str, float, float]] = []
        for kind, begin, end in self.events:
            piece = kind, round((begin - start) * 1e3, 3), round((end - start) * 1e3, 3)
            if pieces and kind == pieces[-1][0] == "work" and piece[1] - pieces[-1][2] < _PAUSE:
                pieces[-1] = kind, pieces[-1][1], piece[2]
            else:
                pieces.append(piece)
        return pieces


def _with_tables(local: DLRM, tables: Sequence[nn.Module]) -> nn.Module:
    """Return a model with the given tables and the other layers of ``local``, which it shares."""
    sizes = [1] * len(tables)
    model = DLRM(_NUMBERS, sizes, _WIDTH, 1, 1).eval()
    model.bottom, model.top, model.embeddings = local.bottom, local.top, nn.ModuleList(tables)
    return model


class _AtHand(nn.Module):
    """A replacement for a table that returns fixed vectors without a fetch."""

    vectors: Tensor

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.register_buffer("vectors", vectors)

    def forward(self, ids: Tensor) -> Tensor:
        return self.vectors


def _fetch_all(tables: Sequence[str], dense: Tensor, categories: Tensor) -> list[Tensor]:
    """Start all fetches at once, and return their vectors."""
    futures = [start_fetch(_SERVER, name, categories[:, number], _WIDTH, _LIMIT) for number, name in enumerate(tables)]
    return [wait_for_vectors(future) for future in futures]


def _is_same(local: nn.Module, before: GraphModule, after: GraphModule, query: Query) -> bool:
    wanted = local(*query)
    return torch.equal(before(*query), wanted) and torch.equal(after(*query), wanted)


def _moved(overlap: OverlapCommunication, before: GraphModule) -> Mapping[str, int]:
    """Return the number of fetches, and of those that overlap with an operation."""
    fetches = overlap.explain(before)
    return {"fetches_count": len(fetches), "moved": sum(bool(fetch.operations) for fetch in fetches)}


def _time(
    programs: Mapping[str, Callable[..., Any]], queries: Sequence[Query], settings: Mapping[str, Any]
) -> dict[str, Any]:
    samples = {name: partial(_sample, program, itertools.cycle(queries)) for name, program in programs.items()}
    timed = pairs.time_rounds(samples, baseline="before", rounds=settings["rounds"], threads=settings["threads"])
    alone = zip(timed["work"].transformed, timed["fetches"].transformed, strict=True)
    over = tuple(after / max(pair) for after, pair in zip(timed["after"].transformed, alone, strict=True))
    return {
        **pairs.record_pairs(timed["after"], "before", "after"),
        **{name: pairs.to_nanoseconds(timed[name].transformed) for name in ("work", "fetches", "fetch")},
        "over_ideal_interval": [round(end, 6) for end in median_interval(over)],
        "in_a_sample": _IN_A_SAMPLE,
    }


def _sample(program: Callable[..., Any], queries: Iterator[Query]) -> None:
    for query in itertools.islice(queries, _IN_A_SAMPLE):
        program(*query)


def _numbers(values: Mapping[str, Any]) -> Mapping[str, float]:
    count = values["in_a_sample"]
    numbers = dict(pairs.tell_pairs(values, "before", "after"))
    alone = [max(pair) for pair in zip(values["work"], values["fetches"], strict=True)]
    ideal = [best / old for best, old in zip(alone, values["before"], strict=True)]
    low, high = values["over_ideal_interval"]
    if "predicted_after" in values:
        relative = values["predicted_after"] / values["predicted_before"]
        numbers |= {"predicted_relative": round(relative, 6), "predicted_speedup": round(1 / relative, 6)}
    return {
        **numbers,
        **{f"{name}_queries": round(count / numbers[f"{name}_median"], 3) for name in ("before", "after")},
        **{f"{name}_ms": round(statistics.median(values[name]) / count * 1e3, 6) for name in ("work", "fetches")},
        "ideal_relative": round(statistics.median(ideal), 6),
        "over_ideal": round(statistics.median(map(float.__truediv__, values["after"], alone)), 6),
        "over_ideal_low": low,
        "over_ideal_high": high,
        **{name: values[name] for name in ("threads", "fetches_count", "moved", "same")},
    }


_FOUND = pairs.speedup_of("after", 2, " times as many queries per second ")

register_table(
    Table(
        name="scheduling",
        title="Fetches beside local work",
        section="section 6.2.3",
        protocol=(
            "The program is the zoo's DLRM, a recommender, with its embedding tables in another process. It *fetches* "
            "128 times two rows of each table, 64 wide, by `torch.distributed.rpc` over TCP on the loopback, right "
            "before it uses them. Before that it runs the network on the numeric inputs; *bottom* is the width of "
            "that network. *After* is the same program after the pass `overlap`, with sizes recorded. It has all "
            "fetches in flight at the same time, unless the row gives a number.\n\n"
            "All results are compared bit for bit with those of the model that has its tables in its own process. "
            "Then four programs are timed in turns: before, after, the *work alone* (with the rows at hand), and the "
            "*fetches alone* (all started at once). Each has one thread and, after warm-up, eight queries in a "
            "sample. A speed-up is the median of the ratios of the rounds, with its bootstrap 95 % interval. Queries "
            "per second and milliseconds are medians.\n\n"
            "*Estimated* is computed by `simulate` without a timing of either program. It uses the times of "
            "operations (each kernel measured once) and the time of one fetch alone. It assumes that the server "
            "answers one fetch after the other, as fast as if all are started at once.\n\n"
            "The *ideal* is the larger of the times of work and fetches alone. It cannot be reached: work that needs "
            "the rows comes after the fetches, the computing thread also writes requests and reads answers, and the "
            "server uses a processor of the same machine. A network between machines is slower than a loopback."
        ),
        claims=(
            Claim(
                "On large distributed training jobs, we have found this optimization can increase QPS by up to 9%.",
                "up to 1.09 times as many queries per second",
                {
                    "8 tables of 100,000 rows, bottom 2048": f"8 fetches: {_FOUND}",
                    "1 table of 100,000 rows, bottom 2048": f"1 fetch: {_FOUND}",
                    "8 tables of 100,000 rows, bottom 8192": f"8 fetches, more work: {_FOUND}",
                    "8 tables of 100,000 rows, bottom 64": f"8 fetches, hardly any work beside them: {_FOUND}",
                },
            ),
        ),
        rows=_rows,
        columns=(
            Column("rounds", "{trials}"),
            Column("fetches that run beside work", "{moved} of {fetches_count}"),
            Column("before, queries/s", "{before_queries:,.0f}"),
            Column("after, queries/s", "{after_queries:,.0f}"),
            Column("speed-up", pairs.speedup_of("after")),
            Column("speed-up, estimated", "{predicted_speedup:.3f}"),
            Column("work alone, ms", "{work_ms:.2f}"),
            Column("fetches alone, ms", "{fetches_ms:.2f}"),
            Column("after, over the ideal", "{over_ideal:.2f} ({over_ideal_low:.2f} to {over_ideal_high:.2f})"),
            Column("same results, bit for bit", "{same}"),
        ),
        chart=Chart(
            title="A recommender that fetches from a parameter server",
            axis="time over that of blocking fetches (lower is better; 95 % intervals)",
            series=(
                pairs.with_interval("after overlap", "after_relative", "ours"),
                Series("estimated", "predicted_relative", "peer"),
                Series("ideal: the larger of work and fetches", "ideal_relative", "baseline"),
            ),
            template="{:.2f}",
            reference=(1.0, "blocking fetches"),
        ),
        timeline=Timeline(
            title="What runs when in one query",
            rows=("8 tables of 100,000 rows, bottom 2048", "3 tables of 30 rows, bottom 16"),
            kinds={"work": "ours", "start": "baseline", "wait": "peer", "fetch": "paper"},
        ),
        numbers=_numbers,
    )
)
