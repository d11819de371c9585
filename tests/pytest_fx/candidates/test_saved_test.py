"""The test file of a wrong candidate: it fails alone, by the broken law, and passes once the candidate is right."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from pytest_fx import judge
from pytest_fx.candidates import drawn_inputs
from pytest_fx.errors import InputError

pytestmark = pytest.mark.usefixtures("fewer_inputs")

KERNELS = """
import torch
from torch import nn


def relu(x):
    result, whole = torch.zeros_like(x), x.shape[-1] // 4 * 4
    result[..., :whole] = torch.relu(x[..., :whole])
    return result


def gaps(x):
    return torch.relu(x.as_strided(x.shape, torch.empty(x.shape).stride()))


def patching(x):
    torch.sinh = torch.cosh
    return torch.relu(x)


class Doubled(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


calls = []


def wrong_later(x):
    calls.append(1)
    return torch.relu(x) if len(calls) < 300 else x


def packed(module):
    module.packed = module.weight.detach().t() * 2


class Packed(nn.Linear):
    def forward(self, x):
        return x @ self.packed + self.bias
"""
X = torch.linspace(-2.0, 2.0, 24).reshape(3, 8)


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """The user's module ``kernels``, in the working directory."""
    (tmp_path / "kernels.py").write_text(KERNELS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "kernels.py"
    sys.modules.pop("kernels", None)


def outcome(test, folder):
    """Run a test file with pytest from another folder; return the exit status and the output."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    return run.returncode, run.stdout


def function_of(path):
    """Return the test function of a file."""
    (test,) = (value for name, value in runpy.run_path(path).items() if name.startswith("test_"))
    return test


def test_a_test_of_a_wrong_candidate_fails_until_the_candidate_is_right(kernels, tmp_path_factory):
    verdict = judge("torch:relu", "kernels:relu", X, forward_only=True)
    assert verdict.law == "other sizes" and f"a test of it alone: {verdict.test}" in str(verdict)
    text = (kernels.parent / verdict.test).read_text(encoding="utf-8")
    assert "law='other sizes'" in text and '"kernels:relu"' in text.replace("'", '"')
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    status, output = outcome(kernels.parent / verdict.test, elsewhere)
    assert status == 1 and "law 'other sizes'" in output and "float32[2, 1]" in output, output
    kernels.write_text("import torch\n\ndef relu(x):\n    return torch.relu(x)\n", encoding="utf-8")
    function_of(kernels.parent / verdict.test)()


@pytest.mark.parametrize(
    "name, law",
    [("gaps", "other values"), ("patching", "process"), ("wrong_later", "many calls")],
)
def test_a_law_that_is_checked_alone_is_broken_again(kernels, name, law, monkeypatch):
    import kernels as module

    monkeypatch.setattr(drawn_inputs, "BATCHES", 8)  # many calls
    candidate = getattr(module, name)
    verdict = judge(torch.relu, candidate, X, forward_only=True, timing=False)
    assert verdict.law == law and verdict.test, str(verdict)
    assert f"law='{law}'" in Path(verdict.test).read_text(encoding="utf-8")
    with pytest.raises(AssertionError, match=f"law '{law}'"):
        function_of(verdict.test)()


def test_modules_are_saved_with_their_parameters(kernels):
    import kernels as module

    verdict = judge(nn.Linear(8, 4), module.Doubled(8, 4), X, timing=False)
    assert verdict.law == "values"
    names = {path.name for path in (kernels.parent / verdict.test).parent.iterdir()}
    assert {"reference.pt", "candidate.pt", "inputs.safetensors"} <= names
    with pytest.raises(AssertionError, match="law 'values'"):
        function_of(verdict.test)()


def test_a_function_that_prepares_the_candidate_is_named_in_its_test(kernels):
    import kernels as module

    options = {"prepare": module.packed, "forward_only": True, "timing": False}
    verdict = judge(nn.Linear(8, 4), module.Packed(8, 4), X, **options)
    assert verdict.verdict == "wrong"
    assert "prepare='kernels:packed'" in (kernels.parent / verdict.test).read_text(encoding="utf-8")
    again = judge(nn.Linear(8, 4), module.Packed(8, 4), X, **{**options, "prepare": "kernels:packed", "law": "values"})
    assert again.law == "values"


def test_a_candidate_without_a_name_has_no_test_with_the_reason(kernels):
    verdict = judge(torch.relu, lambda x: x, X, timing=False)
    assert not verdict.test and verdict.why_no_test == "the candidate has no name under which it can be imported"
    assert not judge("torch:relu", "kernels:gaps", X, timing=False, forward_only=True, folder=None).why_no_test


def test_a_law_that_does_not_exist_is_refused():
    with pytest.raises(InputError, match="no law 'speed' is checked alone\n  try    use one of returns, "):
        judge(torch.relu, torch.relu, X, law="speed")
