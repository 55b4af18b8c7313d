"""What `fit`, `serve` and streams share: a model that learns, with its position, floors and scores."""
