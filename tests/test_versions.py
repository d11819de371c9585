"""The commands that test under other interpreters and with other versions of torch: what they print and decide."""

import subprocess
import sys
from pathlib import Path

import interpreters
import pytest
import versions
from versions import Row, constraints, is_for_cuda, one_a_minor, outcomes, table


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


@pytest.mark.skipif(sys.platform != "linux", reason="there are builds for CUDA and for the CPU on Linux only")
def test_a_build_for_cuda_is_known_by_what_it_requires():
    def report(*required):
        return {"install": [{"metadata": {"name": "torch", "requires_dist": list(required)}}]}

    assert not is_for_cuda(report("filelock", "sympy>=1.13"))
    assert is_for_cuda(report("filelock", 'nvidia-cudnn-cu13==9.20.0.48; platform_system == "Linux"'))
    assert is_for_cuda(report("cuda-toolkit==13.0.3"))


def test_each_minor_version_is_tested_once_and_as_a_build_for_the_cpu_where_there_is_one():
    assert one_a_minor(["2.15.0", "2.14.0", "2.14.1", "2.13.0", "2.13.0+cpu", "2.9.1", "2.10.0"], "2.10") == [
        "2.10.0",
        "2.13.0+cpu",
        "2.14.1",
        "2.15.0",
    ]


def test_other_versions_of_torch_are_pinned_beside_the_same_packages():
    text = "sympy==1.14.0\ntorch==2.13.0\ntorchless==1.0\n"
    assert constraints(text, None) == text
    assert constraints(text, "2.10.0") == "sympy==1.14.0\ntorch==2.10.0\ntorchless==1.0\n"


def test_a_build_for_cuda_is_installed_only_when_it_is_asked_for(monkeypatch, tmp_path):
    environment = versions.Environment.__new__(versions.Environment)
    environment.folder, asked = tmp_path, []

    def pip(*arguments):
        asked.append(arguments)
        return '{"install": [{"metadata": {"requires_dist": ["nvidia-cublas"]}}]}'

    monkeypatch.setattr(environment, "_pip", pip, raising=False)
    monkeypatch.setattr(versions.sys, "platform", "linux")
    with pytest.raises(versions.CannotInstall, match="not installable as a CPU build: there is one for CUDA only"):
        environment.install("2.10.0", cuda=False)
    assert len(asked) == 1 and "--dry-run" in asked[0]
    environment.install("2.10.0", cuda=True)
    assert [arguments for arguments in asked[2:] if "torch" in arguments]
    assert "torch==2.10.0\n" in (tmp_path / "constraints.txt").read_text()


def test_interpreters_are_found_once_a_version_the_one_that_runs_among_them(monkeypatch):
    found = interpreters.found()
    assert sys.version_info[:2] in found
    assert all(version >= (3, 10) for version in found)
    for version, python in found.items():
        asked = subprocess.run(
            [python, "-c", "import sys; print(sys.version_info[:2])"], check=False, capture_output=True, text=True
        )
        assert asked.stdout.strip() == str(version)


def test_what_does_not_start_is_no_interpreter(monkeypatch, tmp_path):
    shim = tmp_path / "versions" / "3.12.9" / "bin" / "python3.12"
    shim.parent.mkdir(parents=True)
    shim.write_text("#!/bin/sh\necho 'not installed' >&2\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert interpreters.found() == {sys.version_info[:2]: Path(sys.executable)}


def test_the_commands_need_the_standard_library_only():
    run = subprocess.run(
        [sys.executable, "-S", versions.__file__, "--help"], check=False, capture_output=True, text=True
    )
    assert run.returncode == 0 and "make torches" in run.stdout
