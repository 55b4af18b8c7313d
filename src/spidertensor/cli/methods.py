"""`spider methods`: the methods that spider evaluate knows."""

from __future__ import annotations

from spidertensor.cli import options, output


def methods(as_json: options.AsJson = False) -> None:
    """List the methods of spider evaluate and spider experiment."""
    from spidertensor.study.registry import METHODS

    about = {name: method.about for name, method in METHODS.items()}
    if as_json:
        output.print_json(about)
    else:
        output.print_pairs("", list(about.items()))
