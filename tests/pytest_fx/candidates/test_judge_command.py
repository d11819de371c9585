"""``python -m pytest_fx judge``: names, exit status and the file of verdicts."""

import json
import subprocess
import sys

import pytest
import torch

from pytest_fx.candidates.judge_command import main

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
def kernels(tmp_path, monkeypatch):
    """The working directory, with the user's module ``kernels``."""
    (tmp_path / "kernels.py").write_text(KERNELS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    threads = torch.get_num_threads()
    yield tmp_path
    torch.set_num_threads(threads)
    sys.modules.pop("kernels", None)


def judged(*arguments):
    """Return the exit status and the output of the command, run in this process."""
    lines = []
    return main(arguments, lines.append), "".join(lines)


def test_verdicts_are_printed_and_written_and_a_wrong_one_is_the_exit_status(kernels):
    command = [
        sys.executable, "-m", "pytest_fx", "judge", "torch.nn.functional:relu", "kernels:fast", "kernels:wrong",
        "--inputs", "kernels:inputs", "--no-timing", "--json", "verdicts.json",
    ]  # fmt: skip
    run = subprocess.run(command, cwd=kernels, capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 1, run.stderr
    assert "kernels:fast in the place of torch.nn.functional:relu: right" in run.stdout
    verdicts = json.loads((kernels / "verdicts.json").read_text(encoding="utf-8"))
    assert [each["verdict"] for each in verdicts] == ["right", "wrong"] and verdicts[1]["evidence"]


def test_a_name_that_leads_nowhere_is_an_error_and_no_verdict(kernels):
    status, output = judged("torch.nn.functional:relu", "kernels:fast", "--inputs", "kernels:input")
    assert status == 2 and "no attribute 'input'" in output


def test_a_candidate_that_cannot_be_imported_is_wrong(kernels):
    status, output = judged("torch.nn.functional:relu", "kernels:missing", "--inputs", "kernels:inputs")
    assert status == 1 and "cannot be loaded" in output
