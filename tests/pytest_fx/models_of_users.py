"""Modules as users write them, as text: models with example inputs, right and wrong ones, and passes that fork."""

MODELS = """
import torch
from torch import nn

class Optional(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, n=2, m=3):
        return self.linear(x) * n + m

class Sized(nn.Module):
    def forward(self, x):
        return torch.relu(x), x.size()

def optional():
    return Optional(), torch.ones(3, 4)

def sized():
    return Sized(), torch.ones(3, 4)

def shape():
    return Optional(), torch.ones(3, 5)

def key():
    return Optional(), {"y": torch.ones(3, 4), "nn": 3}

def bare():
    return Optional()

class InFewBits(nn.Module):
    def forward(self, x):
        return torch.relu(x).to(torch.float8_e4m3fn), (x / 0).to(torch.float8_e5m2)

def few_bits():
    return InFewBits(), torch.ones(3, 4)
"""
"""Factories of models; lines are known by their numbers."""
FORKING = """
import os, threading

def fork(program=None):
    if os.fork() == 0:
        os._exit(0)

def in_a_thread(program):
    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
"""
"""Passes that copy the process."""

BRANCHING = """
import torch, torch.fx
from torch import nn
import fx

class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.choice, self.last = nn.Linear(4, 4), Branching(), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(torch.sigmoid(self.choice(torch.sigmoid(self.first(x)))))

def network():
    torch.manual_seed(0)
    return Network(), torch.ones(3, 4)

class Theirs(torch.fx.Tracer):
    def is_leaf_module(self, m, name):
        return isinstance(m, Branching) or super().is_leaf_module(m, name)

class Ours(fx.Tracer):
    def is_leaf_module(self, m, name):
        return isinstance(m, Branching) or super().is_leaf_module(m, name)
"""
