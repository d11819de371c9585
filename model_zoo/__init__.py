"""Named models with example inputs, to check transforms on.

>>> from model_zoo import get_model, list_models
>>> "resnet50" in list_models()
True
>>> mlp = get_model("mlp")
>>> module, arguments = mlp.build(), mlp.example_inputs(batch=2)
>>> tuple(module(*arguments).shape)
(2, 10)

To add a model, call :func:`register_model` in its file and import that file here. :func:`blocks` yields common building
blocks of models, each as a module of a few lines.
"""

from model_zoo import (
    bert,
    deep_recommender,
    dlrm,
    gpt2,
    learning_to_paint,
    llama,
    resnet,
    sequence_models,
    small_models,
    unet,
    vit,
)
from model_zoo.blocks import blocks
from model_zoo.registered_models import (
    ModelError,
    get_model,
    is_small_sibling,
    list_models,
    models_with_tag,
    register_model,
)
from model_zoo.zoo_model import ExampleInputs, ZooModel, seeded

__all__ = [
    "ExampleInputs",
    "ModelError",
    "ZooModel",
    "bert",
    "blocks",
    "deep_recommender",
    "dlrm",
    "get_model",
    "gpt2",
    "is_small_sibling",
    "learning_to_paint",
    "list_models",
    "llama",
    "models_with_tag",
    "register_model",
    "resnet",
    "seeded",
    "sequence_models",
    "small_models",
    "unet",
    "vit",
]
