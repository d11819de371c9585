"""``make models``: models of torchvision, timm and transformers, one way in after the other; ``results/models.md``."""
