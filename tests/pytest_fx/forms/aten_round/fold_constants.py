import torch
import torch.fx

WRONG = "folds expressions over buffers that the program itself writes, freezing their value at pass time"
LEVEL = "exported"


def _lookup(graph_module, target):
    value = graph_module
    for part in target.split("."):
        value = getattr(value, part)
    return value


def fold_constants(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Evaluate calls whose tensor inputs are all parameters, buffers or constants."""
    graph = graph_module.graph
    sizes_known = {}
    count = 0
    for node in list(graph.nodes):
        if node.op == "get_attr":
            value = _lookup(graph_module, node.target)
            if isinstance(value, torch.Tensor):
                sizes_known[node] = value.detach()
            continue
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        schema = node.target._schema
        if schema.is_mutable or torch.Tag.nondeterministic_seeded in node.target.tags:
            continue
        if any(r.alias_info is not None for r in schema.returns):
            continue  # a view: somebody may write through it
        inputs = node.all_input_nodes
        if not inputs or any(n not in sizes_known for n in inputs):
            continue
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: sizes_known[n])
        with torch.no_grad():
            value = node.target(*args, **kwargs)
        if not isinstance(value, torch.Tensor):
            continue
        name = f"_folded_{count}"
        count += 1
        graph_module.register_buffer(name, value, persistent=False)
        with graph.inserting_before(node):
            constant = graph.get_attr(name)
        constant.meta = dict(node.meta)
        sizes_known[constant] = value
        node.replace_all_uses_with(constant)
        graph.erase_node(node)
    for node in reversed(list(graph.nodes)):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


class RollingScale(torch.nn.Module):
    """Scales by a window of statistics whose newest entry this call writes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.ones(5))
        self.weight = torch.nn.Parameter(torch.randn(4))

    def forward(self, x):
        self.window[0].copy_(x.abs().max())
        return x * torch.sigmoid(self.weight) / self.window.mean()


def witness():
    torch.manual_seed(0)
    return RollingScale().eval(), (torch.randn(3, 4),)
