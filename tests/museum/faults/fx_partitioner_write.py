"""`CapabilityBasedPartitioner` fuses calls around a write that lies between them.

software: torch.fx
kind: wrong values
known: not found
"""

import torch
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import create_op_support

aten = torch.ops.aten


class Model(torch.nn.Module):
    def forward(self, x):
        y = torch.sin(x)
        x.add_(1)
        return y, torch.sin(x)


ep = torch.export.export(Model(), (torch.zeros(1),)).module()
support = create_op_support(lambda modules, node: node.target == aten.sin.default)
fused = CapabilityBasedPartitioner(ep, support, allows_single_node_partition=True).partition_and_fuse()
expected, actual = Model()(torch.zeros(1)), fused(torch.zeros(1))
assert all(map(torch.equal, expected, actual)), f"{actual} instead of {expected}"
