"""Judge a changed pass beside its last commit, in a small repository that this program makes.

``python examples/beside_revision.py`` commits a right pass, changes it, and runs ``pytest --fx-against HEAD``. The
changed pass also takes clamps with another bound than 0. It is wrong here and right at the commit, so the run fails.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

PASSES = '''
import torch
from torch import nn


class Net(nn.Module):
    def forward(self, x):
        return x.clamp(min=0) + x.clamp(min=-1)


def net():
    return Net(), (torch.linspace(-2, 2, 64).reshape(8, 8),)


def clamps_as_relu(program):
    """Write clamps at 0 as relu."""
    for node in program.graph.find_nodes(op="call_method", target="clamp"):
        if node.kwargs["min"] == 0:
            node.target, node.kwargs = "relu", {}
    program.recompile()
    return program
'''
CHANGED = PASSES.replace('node.kwargs["min"] == 0', '"min" in node.kwargs')


def main() -> int:
    """Return the exit status of pytest: 1, since a pass that was right is wrong."""
    with tempfile.TemporaryDirectory() as folder:

        def run(*command: str) -> int:
            return subprocess.run(command, cwd=folder, check=False).returncode

        file = Path(folder, "passes.py")
        file.write_text(PASSES)
        run("git", "init", "--quiet")
        run("git", "add", "passes.py")
        run("git", "-c", "user.name=me", "-c", "user.email=me@example.com", "commit", "--quiet", "-m", "Write clamps")
        file.write_text(CHANGED)
        options = ("--fx-model", "passes:net", "--fx-pass", "passes:clamps_as_relu", "--fx-against", "HEAD")
        return run(sys.executable, "-m", "pytest", "--fx-no-timing", *options)


if __name__ == "__main__":
    sys.exit(main())
