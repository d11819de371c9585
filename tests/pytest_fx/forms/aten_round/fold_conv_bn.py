import operator

import torch
import torch.fx

RIGHT = (
    "eval-mode batch norm after a forward convolution with one user is an affine map of its output channels; "
    "new constants are made, the old ones stay untouched, tensors the program could write are refused"
)
LEVEL = "decomposed"

aten = torch.ops.aten
CONV = aten.convolution.default
BN = aten._native_batch_norm_legit_no_training.default


def _lookup(graph_module, target):
    value = graph_module
    for part in target.split("."):
        value = getattr(value, part)
    return value


def _storage(tensor):
    return tensor.untyped_storage()._cdata


def fold_conv_bn(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """For inference: the folded weights no longer follow the parameters."""
    graph = graph_module.graph
    values, by_storage = {}, {}
    for node in graph.nodes:
        if node.op == "get_attr":
            value = _lookup(graph_module, node.target)
            if isinstance(value, torch.Tensor):
                values[node] = value
                by_storage.setdefault(_storage(value), []).append(node)

    def read_only(node):
        return all(
            user.op == "call_function" and user.target in (CONV, BN)
            for alias in by_storage[_storage(values[node])]
            for user in alias.users
        )

    def constant(value, like):
        index = 0
        while hasattr(graph_module, f"_folded_conv_bn_{index}"):
            index += 1
        name = f"_folded_conv_bn_{index}"
        graph_module.register_buffer(name, value, persistent=False)
        new = graph.get_attr(name)
        if "val" in like.meta:
            new.meta["val"] = like.meta["val"]
        return new

    for bn in list(graph.nodes):
        if bn.op != "call_function" or bn.target != BN or len(bn.args) != 7:
            continue
        conv, gamma, beta, mean, var, _momentum, eps = bn.args
        if conv.op != "call_function" or conv.target != CONV or len(conv.users) != 1:
            continue
        if len(conv.args) != 9 or conv.args[6] is not False:
            continue
        if not all(u.target is operator.getitem and u.args[1] == 0 for u in bn.users):
            continue
        weight, bias = conv.args[1:3]
        argument = [n for n in (weight, bias, gamma, beta, mean, var) if n is not None]
        if any(n not in values or not read_only(n) for n in argument):
            continue
        dtypes = {values[n].dtype for n in argument}
        if "val" not in conv.meta or dtypes not in ({torch.float32}, {torch.float64}):
            continue
        if conv.meta["val"].dtype not in dtypes:
            continue
        with torch.no_grad():
            w = values[weight]
            scale = torch.rsqrt(values[var] + eps)
            if gamma is not None:
                scale = scale * values[gamma]
            shift = -values[mean] if bias is None else values[bias] - values[mean]
            shift = shift * scale
            if beta is not None:
                shift = shift + values[beta]
            new_weight = w * scale.reshape([-1] + [1] * (w.dim() - 1))
        with graph.inserting_before(conv):
            weight_node = constant(new_weight, weight)
            bias_node = constant(shift, mean)
        conv.args = (conv.args[0], weight_node, bias_node, *conv.args[3:])
        for item in list(bn.users):
            item.replace_all_uses_with(conv)
            graph.erase_node(item)
        graph.erase_node(bn)
    graph.lint()
    graph_module.recompile()
    return graph_module


fold_conv_bn.may_change = ("gradients",)


class SharedConv(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 3, 3, padding=1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(3)
        self.bn2 = torch.nn.BatchNorm2d(3, affine=False)
        for bn in (self.bn1, self.bn2):
            bn.running_mean.uniform_(-1, 1)
            bn.running_var.uniform_(0.5, 2)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv(x)))
        x = torch.relu(self.bn2(self.conv(x)))
        return self.conv(x)


def witness():
    torch.manual_seed(0)
    return SharedConv().eval(), (torch.randn(2, 3, 6, 6),)
