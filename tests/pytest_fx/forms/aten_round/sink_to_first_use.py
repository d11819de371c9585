import torch
import torch.fx

WRONG = "moves a read of a tensor past an in-place write to it"
LEVEL = "exported"


def sink_to_first_use(graph: torch.fx.Graph) -> None:
    """Move every pure call down to just before its first user, so that results live shortly."""
    for node in reversed(list(graph.nodes)):
        if node.op != "call_function" or not node.users:
            continue
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        if node.target._schema.is_mutable or torch.Tag.nondeterministic_seeded in node.target.tags:
            continue  # writes and random draws keep their place
        order = {n: i for i, n in enumerate(graph.nodes)}
        first = min(node.users, key=order.__getitem__)
        if node.next is not first:
            first.prepend(node)
    graph.lint()


class LeakyState(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.ones(4))

    def forward(self, x):
        leak = self.state * 0.9
        self.state.copy_(x.mean(0))
        return x + leak


def witness():
    torch.manual_seed(0)
    return LeakyState().eval(), (torch.randn(3, 4),)
