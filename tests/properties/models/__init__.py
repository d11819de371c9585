"""``make models``: the capture of models of torchvision, timm and transformers in each way; ``results/models.md``."""
