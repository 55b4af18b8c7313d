"""A model with its position, floors and scores: the core shared by `fit`, `serve` and streams."""
