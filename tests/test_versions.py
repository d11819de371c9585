"""The commands that test under other interpreters and with other versions of torch: what they print and decide."""

import re
import subprocess
import sys
from pathlib import Path

import interpreters
import pytest
import versions
from versions import CannotInstall, Row, constraints, one_a_minor, outcomes, table


def test_the_table_has_a_row_for_each_version_with_the_reason_where_it_did_not_run():
    rows = [
        Row("3.12.1", "2.13.0+cpu", {"passed": 12, "skipped": 1}, 7.4),
        Row("3.13.0", "2.13.0+cu130", {"failed": 2, "errors": 3, "passed": 9}, 61.0, "see .venv-3.13/tests.log", 1),
        Row("3.14", "2.13.0", note="not installable as a CPU build: there is one for CUDA only, which --cuda allows"),
    ]
    assert table(rows).splitlines() == [
        "python  torch         passed  failed  skipped  seconds",
        "3.12.1  2.13.0+cpu    12      0       1        7",
        "3.13.0  2.13.0+cu130  9       5       0        61       see .venv-3.13/tests.log",
        "3.14    2.13.0        -       -       -        -        "
        "not installable as a CPU build: there is one for CUDA only, which --cuda allows",
    ]
    assert [row.is_red for row in rows] == [False, True, False]


@pytest.mark.parametrize(
    "output, expected",
    [
        ("...\n2 failed, 10 passed, 1 skipped in 29.36s\n", {"failed": 2, "passed": 10, "skipped": 1}),
        ("= 4 passed, 252 errors in 150.11s (0:02:30) =", {"passed": 4, "errors": 252}),
        ("1 passed in 0.1s\nFAILED a - said 3 failed\n= 1 failed in 2.00s =", {"failed": 1}),
        ("ImportError while loading conftest", {}),
    ],
)
def test_the_outcomes_are_those_of_the_last_summary(output, expected):
    assert outcomes(output) == expected


def test_each_minor_version_is_tested_once_and_as_a_build_for_the_cpu_where_there_is_one():
    assert one_a_minor(["2.15.0", "2.14.0", "2.14.1", "2.13.0", "2.13.0+cpu", "2.9.1", "2.10.0"], "2.10") == [
        "2.10.0",
        "2.13.0+cpu",
        "2.14.1",
        "2.15.0",
    ]


def test_other_versions_of_torch_are_pinned_beside_the_same_packages():
    text = "setuptools==84.2.1\nsympy==1.14.0\ntorch==2.13.0\ntorchless==1.0\n"
    assert constraints(text, None) == text
    # torch 2.11 requires setuptools<82
    assert constraints(text, "2.11.0") == "sympy==1.14.0\ntorch==2.11.0\ntorchless==1.0\n"


PIP = """
import os, sys
open(os.environ["FILE"], "a").write(" ".join(sys.argv[1:]) + chr(10))
for line in os.environ["SAYS"].split("|"):
    print(line, flush=True)
open(os.environ["FILE"], "a").write("downloaded" + chr(10))
"""


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """An environment whose pip says what the variable ``SAYS`` holds, and writes down what it was asked."""
    environment = versions.Environment.__new__(versions.Environment)
    environment.folder, environment.python = tmp_path, Path(sys.executable)
    (tmp_path / "pip.py").write_text(PIP)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("FILE", str(tmp_path / "asked"))
    return environment


@pytest.mark.parametrize(
    "said",
    [
        "Collecting cuda-bindings==12.9.4 (from torch==2.10.0)",
        "Collecting nvidia-cublas-cu12==12.8.4.1; platform_system == 'Linux' (from torch)",
        "Processing /packages/cuda_toolkit-13.0.3.0-py2.py3-none-any.whl (from torch)",
    ],
)
def test_a_build_for_cuda_is_downloaded_only_when_it_is_requested(environment, monkeypatch, said):
    # what follows is more than a pipe holds, so that pip cannot end before it is stopped
    monkeypatch.setenv("SAYS", "|".join(["Collecting torch==2.10.0", said, *["  Downloading" + 100 * "."] * 900]))
    with pytest.raises(CannotInstall, match="not installable as a CPU build: there is one for CUDA only"):
        environment.install("2.10.0", cuda=False)
    requests = (environment.folder / "asked").read_text().splitlines()
    assert len(requests) == 1 and "downloaded" not in requests and "--use-feature fast-deps" in requests[0]
    environment.install("2.10.0", cuda=True)
    assert "downloaded" in (environment.folder / "asked").read_text()
    assert "torch==2.10.0\n" in (environment.folder / "constraints.txt").read_text()


def test_what_builds_the_project_is_requested_in_a_version_that_can(environment, monkeypatch):
    monkeypatch.setenv("SAYS", "Requirement already satisfied: setuptools in /packages (84.0)")
    environment.install("2.11.0", cuda=False)
    first = (environment.folder / "asked").read_text().splitlines()[0]
    assert re.search(r" setuptools>=\d+ torch$", first)


def test_what_is_there_already_is_no_download(environment, monkeypatch):
    monkeypatch.setenv("SAYS", "Requirement already satisfied: nvidia-nccl-cu13==2.29.7 in /packages|Collecting sympy")
    environment.install(None, cuda=False)


def test_versions_that_exclude_each_other_are_the_reason():
    output = """Collecting torch
ERROR: Cannot install torch because these package versions have conflicting dependencies.

The conflict is caused by:
    The user requested torch
    The user requested (constraint) torch<=2.14.1,==2.15.0

To fix this you could try to:
1. loosen the range of package versions you've specified

ERROR: ResolutionImpossible: for help visit https://pip.pypa.io"""
    assert versions.reason(output.splitlines()) == (
        "The user requested torch, The user requested (constraint) torch<=2.14.1,==2.15.0"
    )


def test_what_pip_refuses_is_the_reason(environment, monkeypatch):
    (environment.folder / "pip.py").write_text("import sys\nsys.exit('ERROR: No matching distribution for torch')")
    with pytest.raises(CannotInstall, match=r"^No matching distribution for torch$"):
        environment.install("2.10.0", cuda=False)


def test_environments_can_be_tested_as_they_are(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(versions, "ROOT", tmp_path)
    monkeypatch.setattr(versions, "found", lambda: {"3.98": Path(sys.executable), "3.99": Path(sys.executable)})
    monkeypatch.setattr(versions.Environment, "install", lambda *_: pytest.fail("installed"))
    monkeypatch.setattr(versions.Environment, "__init__", lambda *_: None)
    monkeypatch.setattr(versions.Environment, "test", lambda _, given: Row("3.98.0", "2.13.0", {"passed": len(given)}))
    monkeypatch.setattr(sys, "argv", ["versions.py", "pythons", "--as-installed", "tests/fx"])
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\n")
    (tmp_path / ".venv-3.98").mkdir()
    assert versions.main() == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "3.98.0  2.13.0  1       0       0        0",
        "3.99    2.13.0  -       -       -        -        there is no such environment",
    ]


def test_an_environment_without_torch_is_a_row_with_the_reason(environment, monkeypatch):
    (environment.folder / "torch.py").write_text("raise ImportError('libtorch is not there')")
    monkeypatch.setattr(versions.Environment, "__new__", lambda *_: environment)
    monkeypatch.setattr(versions.Environment, "__init__", lambda *_: None)
    monkeypatch.setattr(versions, "ROOT", environment.folder)
    options = versions.argparse.Namespace(as_installed=True, cuda=False, arguments=[])
    row = versions.attempt(".", Path(sys.executable), ("3.11", "2.13.0"), None, options)
    assert row == Row("3.11", "2.13.0", note="torch cannot be imported: ImportError: libtorch is not there")


def test_interpreters_are_found_once_a_version_the_one_that_runs_among_them():
    by_version = interpreters.found()
    assert interpreters.running() in by_version
    for name, python in by_version.items():
        version = "print('{}.{}'.format(*sys.version_info) + sys.abiflags.replace('d', ''))"
        answer = subprocess.run([python, "-c", f"import sys; {version}"], check=False, capture_output=True, text=True)
        assert answer.stdout.strip() == name
        assert int(name.removeprefix("3.").removesuffix("t")) >= 10


def test_a_build_without_a_global_lock_is_an_interpreter_of_its_own(monkeypatch, tmp_path):
    for folder, free_threaded in (("3.13.0", "false"), ("3.13.9t", "true")):
        python = tmp_path / "versions" / folder / "bin" / "python3.13"
        python.parent.mkdir(parents=True)
        micro = folder.split(".")[2].removesuffix("t")
        python.write_text(f'#!/bin/sh\necho \'["cpython", "final", {free_threaded}, [3, 13, {micro}]]\'\n')
        python.chmod(0o755)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    by_version = interpreters.found()
    assert by_version["3.13t"] == tmp_path / "versions" / "3.13.9t" / "bin" / "python3.13"
    if interpreters.running() != "3.13":
        assert by_version["3.13"] == tmp_path / "versions" / "3.13.0" / "bin" / "python3.13"


def test_what_does_not_start_is_no_interpreter(monkeypatch, tmp_path):
    shim = tmp_path / "versions" / "3.12.9" / "bin" / "python3.12"
    shim.parent.mkdir(parents=True)
    shim.write_text("#!/bin/sh\necho 'not installed' >&2\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert interpreters.found() == {interpreters.running(): Path(sys.executable)}


def test_the_commands_need_the_standard_library_only():
    run = subprocess.run(
        [sys.executable, "-S", versions.__file__, "--help"], check=False, capture_output=True, text=True
    )
    assert run.returncode == 0 and "make torches" in run.stdout
