"""Rows on disk survive interruptions, writers beside each other, and readers that come too early."""

import json
import multiprocessing
import os
import platform
import subprocess
import time
from pathlib import Path

import pytest
import torch

from pytest_fx.records.records import append_record, describe_machine, read_records, write_atomically


def append_many(path: Path, writer: int) -> None:
    for number in range(50):
        append_record(path, {"writer": writer, "number": number, "text": "x" * 500})


def test_records_are_read_in_the_order_they_were_appended(tmp_path):
    path = tmp_path / "deep" / "rows.jsonl"
    for number in range(3):
        append_record(path, {"number": number})
    assert read_records(path) == [{"number": 0}, {"number": 1}, {"number": 2}]


def test_a_file_that_is_not_there_has_no_records(tmp_path):
    assert read_records(tmp_path / "rows.jsonl") == []


def test_a_line_that_was_not_finished_is_left_out_and_spoils_no_other(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_record(path, {"number": 1})
    with path.open("a") as file:
        file.write('{"number": 2, "spe')
    assert read_records(path) == [{"number": 1}]
    append_record(path, {"number": 3})
    assert read_records(path) == [{"number": 1}, {"number": 3}]


def test_processes_that_append_at_the_same_time_do_not_mix_their_lines(tmp_path):
    path = tmp_path / "rows.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=append_many, args=(path, writer)) for writer in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    records = read_records(path)
    assert [[record["number"] for record in records if record["writer"] == writer] for writer in range(2)] == [
        list(range(50))
    ] * 2
    assert [json.loads(line) for line in path.read_text().splitlines()] == records  # with no line between


def test_numbers_that_json_has_no_word_for_come_back(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_record(path, {"sqnr_db": float("inf")})
    assert read_records(path) == [{"sqnr_db": float("inf")}]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "table.md"
    write_atomically(path, "old")
    with pytest.raises(TypeError):
        write_atomically(path, 3)  # type: ignore[arg-type]
    assert path.read_text() == "old"
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert [file.name for file in tmp_path.iterdir()] == ["table.md"]


def test_old_temporary_files_of_killed_processes_are_removed(tmp_path):
    path = tmp_path / "table.md"
    for name, written in (("left", 0), ("written now", time.time())):
        other = tmp_path / f".table.md.{name}.pytest-fx"
        other.write_text("half")
        os.utime(other, (written, written))
    write_atomically(path, "new")
    assert sorted(file.name for file in tmp_path.iterdir()) == [".table.md.written now.pytest-fx", "table.md"]


def test_a_measurement_names_its_machine():
    described = describe_machine()
    assert described["cores"] >= 1
    assert described["host"] == platform.node()
    assert set(described["versions"]) >= {"torch", "pytest"}
    assert json.loads(json.dumps(described)) == described


def test_hidden_files_of_others_beside_a_file_that_is_replaced_stay(tmp_path):
    path = tmp_path / "evaluation.md"
    leftover = tmp_path / ".evaluation.md.abc.pytest-fx"
    others = [tmp_path / f".evaluation.md{suffix}" for suffix in (".swp", ".bak", ".un~")]
    for file in (leftover, *others):
        file.write_text("theirs")
        os.utime(file, (0, 0))
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert all(file.exists() for file in others)
    assert not leftover.exists()


def test_a_record_names_the_build_of_torch_that_the_package_version_may_omit(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.13.0+cu130")
    monkeypatch.setattr("pytest_fx.records.records.version", lambda _: "2.13.0")
    assert describe_machine.__wrapped__()["versions"]["torch"] == "2.13.0+cu130"


def current_commit():
    describe_machine.cache_clear()  # it is asked once in a run
    commit = describe_machine()["commit"]
    describe_machine.cache_clear()
    return commit


def test_a_commit_is_marked_if_code_differs_from_it_and_not_if_only_results_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert current_commit() is None
    (tmp_path / "results").mkdir()
    code, result = tmp_path / "code.py", tmp_path / "results" / "page.md"
    for file in (code, result):
        file.write_text("1")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *arguments], check=True)
    commit = current_commit()
    result.write_text("2")
    assert current_commit() == commit and "dirty" not in commit
    code.write_text("2")
    assert current_commit() == f"{commit}-dirty"
