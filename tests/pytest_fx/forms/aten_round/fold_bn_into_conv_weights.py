import torch
import torch.fx

WRONG = (
    "does not check that the convolution's weight (and bias) have no other user, so a shared convolution is "
    "rescaled for every caller"
)
LEVEL = "exported"

aten = torch.ops.aten


def fold_bn_into_conv_weights(exported: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """conv2d + batch_norm(training=False): fold the affine map into the weights in the state dict."""
    sig = exported.graph_signature
    graph_module = exported.graph_module
    graph = graph_module.graph
    fqn = {**sig.inputs_to_parameters, **sig.inputs_to_buffers}

    def tensor(node):
        return exported.state_dict[fqn[node.name]].detach()

    def store(node, value):
        exported.state_dict[fqn[node.name]] = torch.nn.Parameter(value, requires_grad=False)

    with graph_module._set_replace_hook(sig.get_replace_hook()):
        for bn in list(graph.nodes):
            if bn.op != "call_function" or bn.target != aten.batch_norm.default:
                continue
            conv, gamma, beta, mean, var, training, _momentum, eps, *_ = bn.args
            if training or conv.target != aten.conv2d.default or len(conv.users) != 1:
                continue
            if not all(isinstance(n, torch.fx.Node) and n.name in fqn for n in (gamma, beta, mean, var)):
                continue
            weight = conv.args[1]
            bias = conv.args[2] if len(conv.args) > 2 else None
            if weight.name not in fqn or (bias is not None and bias.name not in fqn):
                continue
            scale = tensor(gamma) * torch.rsqrt(tensor(var) + eps)
            shift = tensor(beta) - tensor(mean) * scale
            if bias is not None:
                shift = shift + tensor(bias) * scale
            store(weight, tensor(weight) * scale.reshape(-1, 1, 1, 1))
            # the batch norm's bias slot becomes the fused convolution's bias
            store(beta, shift)
            args = list(conv.args)
            if len(args) > 2:
                args[2] = beta
            else:
                args.append(beta)
            conv.args = tuple(args)
            bn.replace_all_uses_with(conv)
            graph.erase_node(bn)
    graph.lint()
    graph_module.recompile()
    return exported


class SharedHead(torch.nn.Module):
    """One convolution over two pyramid levels, each level with its own batch norm."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 3, 3, padding=1)
        self.bn_p3 = torch.nn.BatchNorm2d(3)
        self.bn_p4 = torch.nn.BatchNorm2d(3)
        for bn in (self.bn_p3, self.bn_p4):
            bn.running_mean.uniform_(-1, 1)
            bn.running_var.uniform_(0.5, 2)
            torch.nn.init.uniform_(bn.weight, 0.5, 2)

    def forward(self, p3, p4):
        return torch.relu(self.bn_p3(self.conv(p3))), torch.relu(self.bn_p4(self.conv(p4)))


def witness():
    torch.manual_seed(0)
    return SharedHead().eval(), (torch.randn(1, 3, 8, 8), torch.randn(1, 3, 4, 4))
