"""`spider methods`: the methods that spider evaluate knows."""

from __future__ import annotations

from spidertensor.cli import options, output


def methods(as_json: options.AsJson = False) -> None:
    """List the methods of spider evaluate and spider experiment."""
    from spidertensor.study.registry import described

    if as_json:
        output.print_json({name: about for name, _, about in described()})
    else:
        output.print_pairs("", [(name, f"{label}: {about}") for name, label, about in described()])
