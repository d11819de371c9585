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

from model_zoo import deep_recommender, dlrm, learning_to_paint, resnet, sequence_models, small_models, unet
from model_zoo.errors import ModelError
from model_zoo.registered_models import get_model, is_small_sibling, list_models, models_with_tag, register_model
from model_zoo.zoo_model import ExampleInputs, ZooModel, seeded

__all__ = [
    "ExampleInputs",
    "ModelError",
    "ZooModel",
    "deep_recommender",
    "dlrm",
    "get_model",
    "is_small_sibling",
    "learning_to_paint",
    "list_models",
    "models_with_tag",
    "register_model",
    "resnet",
    "seeded",
    "sequence_models",
    "small_models",
    "unet",
]
