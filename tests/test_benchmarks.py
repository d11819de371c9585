"""benchmarks: their shared code, without a measurement."""

import gc
import sys

import pytest
import torch

from benchmarks import growth, paired


@pytest.mark.parametrize(
    "given, rounds, batch", [([], 21, 1), (["--quick"], 5, 1), (["--rounds", "3", "--batch", "8"], 3, 8)]
)
def test_options_of_all_benchmarks_are_read_beside_those_of_one(monkeypatch, given, rounds, batch):
    threads = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(sys, "argv", ["benchmark", *given])
    options = paired.parse("what it is", rounds=21, batch={"type": int, "default": 1})
    assert (options.rounds, options.batch, options.quick) == (rounds, batch, "--quick" in given)
    assert threads == [1]


def test_times_of_one_operation_are_beside_those_of_the_first_contender(monkeypatch, capsys):
    monkeypatch.setattr(gc, "collect", lambda: 0)  # which takes long with the objects of all other tests
    now = [0.0]

    def taking(seconds):
        def run(_):
            now[0] += seconds

        return paired.Contender(run)

    table = paired.Table("slow", "fast")
    contenders = {"slow": taking(4.0), "fast": taking(1.0)}
    table.measure_operations("work", 1000, contenders, rounds=3, goal="below 1", clock=lambda: now[0])
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["slow", "fast", "fast", "/", "slow", "goal"]
    expected_row = "work, one operation of 1,000 4 ms 1 ms 0.250 [0.250, 0.250] below 1"
    assert " ".join(row.split()) == expected_row


def test_growth_is_given_per_thousand_jobs_after_the_warm_up(monkeypatch, capsys):
    done = []
    monkeypatch.setattr(growth, "JOBS", {"jobs": (done.append, 20, 10)})
    monkeypatch.setattr(growth, "counts", lambda: {"MiB": 3.0 * sum(done), "objects": 7})
    assert growth.measure_here("jobs", 10) == {"MiB": 3000.0, "objects": 0.0}
    assert done == [1, 2]
    growth_figures = dict.fromkeys(("MiB", "objects", "tensors", "lines", "modules"), 1.5)
    monkeypatch.setattr(growth, "in_fresh_process", lambda *arguments, threads: growth_figures)
    monkeypatch.setattr(sys, "argv", ["growth"])
    growth.main()
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["for", "each", "thousand", "MiB", "objects", "tensors", "lines", "modules", "goal"]
    assert row.split() == ["20", "jobs", *["1.5"] * 5, "under", "10", "MiB"]
