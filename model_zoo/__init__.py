"""Models that transforms are tried on, each with its inputs, under a name.

>>> from model_zoo import get_model, list_models
>>> "resnet50" in list_models()
True
>>> mlp = get_model("mlp")
>>> module, arguments = mlp.build(), mlp.example_inputs(batch=2)
>>> tuple(module(*arguments).shape)
(2, 10)

A model is added by a call of :func:`register_model` in its file and an import of that file here.
"""

from . import resnet, small_models
from .errors import ModelError
from .registry import get_model, list_models, register_model
from .zoo_model import ExampleInputs, ZooModel, seeded

__all__ = [
    "ExampleInputs",
    "ModelError",
    "ZooModel",
    "get_model",
    "list_models",
    "register_model",
    "resnet",
    "seeded",
    "small_models",
]
