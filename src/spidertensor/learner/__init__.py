"""A model with its position, the floors beside it and its scores: what `fit`, `serve` and streams drive."""
