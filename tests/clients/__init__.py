"""Client code of torch.fx, used with ``fx`` in its place and compared with the same code on torch.fx."""
