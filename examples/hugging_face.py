"""Capture a model of Hugging Face through ``torch.export``, rewrite it, and compare. Needs ``transformers``.

    python examples/hugging_face.py

Such models branch on their inputs, which symbolic tracing refuses, so ``fx.capture`` exports them. The model here is
tiny and has random weights: nothing is downloaded.
"""

import torch
import transformers

import fx


def bert() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Return a BERT of two layers and example inputs; ``--fx-model`` accepts this function, too."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    ids = torch.randint(0, 100, (2, 8))
    return transformers.BertModel(config).eval(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def use_tanh_in_gelu(program: fx.GraphModule) -> fx.GraphModule:
    """Use the tanh approximation of GELU, which is faster on some devices."""
    for node in program.graph.find_nodes(op="call_function", target=torch.nn.functional.gelu):
        node.kwargs = {**node.kwargs, "approximate": "tanh"}
    program.recompile()
    return program


use_tanh_in_gelu.contract = fx.passes.approximate(sqnr_db=40)


def captured(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> fx.GraphModule:
    """Capture the model for such inputs, in functions of torch."""
    return fx.capture(model, (), inputs, how="export")


if __name__ == "__main__":
    model, inputs = bert()
    program = captured(model, inputs)
    print(len(program.graph.nodes), "nodes;", program.meta["capture"].batch)
    changed = use_tanh_in_gelu(program)
    with torch.no_grad():
        wanted, got = model(**inputs).last_hidden_state, changed(**inputs)
    got = got["last_hidden_state"] if isinstance(got, dict) else got[0]
    print("largest difference:", f"{(wanted - got).abs().max().item():.1e}")
