"""model_zoo.dlrm: every pair of vectors meets once."""

import torch

from model_zoo import get_model
from model_zoo.dlrm import DLRM


def test_each_pair_of_vectors_meets_once():
    model = DLRM(numbers=4, rows=(3, 5), width=2, bottom=4, top=4)
    assert model.pairs.T.tolist() == [[1, 0], [2, 0], [2, 1]]
    assert model.top[0].in_features == 2 + 3
    assert "pairs" not in model.state_dict()


def test_outputs_are_one_number_a_sample():
    model = get_model("dlrm_small")
    outputs = model.build()(*model.example_inputs(batch=5))
    assert outputs.shape == (5,)
    assert ((outputs > 0) & (outputs < 1)).all()
    assert torch.unique(outputs).numel() == 5
