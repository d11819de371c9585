"""A decoder that is called token by token, for tests of several calls in a row."""

import torch
from torch import nn

from pytest_fx import Steps

PLACES = 16


class Decoder(nn.Module):
    """A decoder of one layer of attention: it takes a token and the cache, and returns logits and the longer cache."""

    def __init__(self, last_place=PLACES - 1):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.places = nn.Embedding(20, 8), nn.Embedding(PLACES, 8)
        self.project, self.head = nn.Linear(8, 24), nn.Linear(8, 20)
        self.last_place = last_place

    def forward(self, token, place, cache):
        x = self.tokens(token) + self.places(place.clamp(max=self.last_place))
        query, key, value = self.project(x).chunk(3, -1)
        keys, values = torch.cat([cache[0], key], 1), torch.cat([cache[1], value], 1)
        weights = (query @ keys.transpose(1, 2)).softmax(-1)
        return {"logits": self.head((weights @ values + x)[:, -1]), "cache": (keys, values)}


def decoder(**settings):
    return Decoder(**settings).eval()


def first():
    return {"token": torch.tensor([[3], [5]]), "place": torch.zeros(2, 1).long(), "cache": (torch.zeros(2, 0, 8),) * 2}


def greedy(outputs, number):
    token = outputs["logits"].argmax(-1, keepdim=True)
    return {"token": token, "place": torch.full((2, 1), number), "cache": outputs["cache"]}


def decoding():
    """The model as a factory returns it."""
    return decoder(), Steps(greedy, first=first(), count=6)


def shorten(program):
    """A pass that forgets the places from the fourth on."""
    (clamp,) = program.graph.find_nodes(op="call_method", target="clamp")
    clamp.kwargs = {"max": 2}
    program.recompile()
