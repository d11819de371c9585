import torch
import torch.fx

WRONG = "keeps the pool's own count_include_pad: explicit zeros always count in the average, so it must become True"
LEVEL = "decomposed"

aten = torch.ops.aten


def fold_pad_into_avg_pool(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """constant_pad_nd(x, p, 0) + avg_pool2d(padding=0) -> avg_pool2d(padding=p)."""
    graph = graph_module.graph
    for pool in list(graph.nodes):
        if pool.op != "call_function" or pool.target != aten.avg_pool2d.default:
            continue
        pad = pool.args[0]
        if pad.target != aten.constant_pad_nd.default:
            continue
        amounts = list(pad.args[1])
        value = pad.args[2] if len(pad.args) > 2 else pad.kwargs.get("value", 0)
        if value != 0 or len(amounts) != 4 or any(a < 0 for a in amounts):
            continue
        left_side, right, top, bottom = amounts
        if left_side != right or top != bottom:
            continue
        args = list(pool.args) + [[], [0, 0], False, True, None][len(pool.args) - 2 :]
        _, kernel, stride, padding, ceil_mode, count_include_pad, divisor = args
        kernel = list(kernel) * (2 if len(kernel) == 1 else 1)
        if any(padding) or ceil_mode:
            continue
        if top > kernel[0] // 2 or left_side > kernel[1] // 2:
            continue  # more than avg_pool2d takes
        pool.args = (
            pad.args[0],
            kernel,
            list(stride) or kernel,
            [top, left_side],
            ceil_mode,
            count_include_pad,
            divisor,
        )
        if not pad.users:
            graph.erase_node(pad)
    graph.lint()
    graph_module.recompile()
    return graph_module


class Blur(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.pad = torch.nn.ZeroPad2d(1)
        self.pool = torch.nn.AvgPool2d(3, stride=2, count_include_pad=False)

    def forward(self, x):
        return self.pool(self.pad(x))


def witness():
    torch.manual_seed(0)
    return Blur().eval(), (torch.rand(1, 2, 7, 7),)
