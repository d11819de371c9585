"""``python -m pytest_fx judge``: names, exit status and the file of verdicts."""

import json
import subprocess
import sys

import pytest

KERNELS = """\
import torch


def inputs(seed):
    return (torch.randn(6, 8, generator=torch.Generator().manual_seed(seed)),)


def right(x):
    return torch.where(x > 0, x, 0.0 * x)


def wrong(x):
    return x.abs()


fast = torch.relu
"""


@pytest.fixture
def judged(tmp_path):
    (tmp_path / "kernels.py").write_text(KERNELS, encoding="utf-8")

    def run(*arguments):
        command = [sys.executable, "-m", "pytest_fx", "judge", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)

    return run


def test_verdicts_are_printed_and_written_and_a_wrong_one_is_the_exit_status(judged, tmp_path):
    run = judged(
        "torch.nn.functional:relu", "kernels:fast", "kernels:wrong", "--inputs", "kernels:inputs", "--no-timing",
        "--json", "verdicts.json",
    )  # fmt: skip
    assert run.returncode == 1, run.stderr
    assert "kernels:fast in the place of torch.nn.functional:relu: right" in run.stdout
    verdicts = json.loads((tmp_path / "verdicts.json").read_text(encoding="utf-8"))
    assert [each["verdict"] for each in verdicts] == ["right", "wrong"] and verdicts[1]["evidence"]


def test_a_name_that_leads_nowhere_is_an_error_and_no_verdict(judged):
    run = judged("torch.nn.functional:relu", "kernels:fast", "--inputs", "kernels:input")
    assert run.returncode == 2 and "no attribute 'input'" in run.stdout


def test_a_candidate_that_cannot_be_imported_is_wrong(judged):
    run = judged("torch.nn.functional:relu", "kernels:missing", "--inputs", "kernels:inputs")
    assert run.returncode == 1 and "cannot be loaded" in run.stdout
