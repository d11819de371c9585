"""Speed and memory of the library itself, as ratios against torch.fx and eager in one alternating run."""
