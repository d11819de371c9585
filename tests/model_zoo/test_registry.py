"""model_zoo.registered_models: models by name."""

import pytest
from torch import nn

from model_zoo import ModelError, ZooModel, get_model, list_models, register_model, registered_models


def zoo_model(name: str) -> ZooModel:
    return ZooModel(name, nn.Identity, lambda batch=1, seed=0: (), source=f"made for {name}")


@pytest.fixture(autouse=True)
def restored_registry(monkeypatch):
    monkeypatch.setattr(registered_models, "_models", registered_models._models.copy())


def test_the_names_are_listed_in_order():
    assert list_models() == sorted(list_models())
    assert "resnet50" in list_models()


def test_a_registered_model_is_found_by_its_name():
    model = register_model(zoo_model("mine"))
    assert get_model("mine") is model


def test_registering_the_same_model_again_is_harmless():
    model = register_model(zoo_model("mine"))
    assert register_model(model) is model


def test_a_second_model_of_one_name_is_refused_and_both_are_described():
    register_model(ZooModel("mine", nn.Identity, lambda batch=1, seed=0: (), source="here"))
    with pytest.raises(ModelError) as error:
        register_model(ZooModel("mine", nn.Identity, lambda batch=1, seed=0: (), source="there"))
    assert str(error.value) == (
        "two models are named 'mine'\n"
        "  value  one from here and one from there\n"
        "  why    a name identifies one model\n"
        "  try    rename one of them"
    )


def test_a_misspelled_name_is_answered_with_the_nearest_ones():
    with pytest.raises(ModelError) as error:
        get_model("ResNet-5O")
    assert str(error.value) == (
        "there is no model named 'ResNet-5O'\n  try    did you mean 'resnet50' or 'resnet_tiny'?"
    )


def test_a_name_like_no_other_is_answered_with_all_names():
    with pytest.raises(ModelError, match=r"known models: .*mlp, .*resnet50") as error:
        get_model("#")
    assert isinstance(error.value, LookupError)
