"""Capture and fusion of convolution and batch norm, from module to fused program (paper, section 6.2.2: 81 ms)."""

from __future__ import annotations

import copy
from typing import Any

from torch.fx.experimental.optimization import fuse

import fx
from fx.passes import FuseConvBN
from model_zoo import get_model

from .paired import Contender, Table, measure, parse


def ours(module: Any) -> fx.GraphModule:
    """Capture and fuse; the module stays as it is without being copied."""
    return FuseConvBN()(fx.symbolic_trace(module))


def main() -> None:
    """Print the table."""
    options = parse(__doc__, rounds=15)
    table = Table(("torch.fx", "no copy", "fx"))
    for name in ("resnet_tiny", "resnet50"):
        module = get_model(name).build().eval()
        contenders = {
            "torch.fx": Contender(lambda _, module=module: fuse(module)),
            "no copy": Contender(lambda copied: fuse(copied, inplace=True), lambda m=module: copy.deepcopy(m)),
            "fx": Contender(lambda _, module=module: ours(module)),
        }
        table.add(
            measure(
                f"capture and fuse-conv-bn, {name}",
                contenders,
                baseline="torch.fx",
                rounds=options.rounds,
                goal="below 1" if name == "resnet50" else "",
            )
        )


if __name__ == "__main__":
    main()
