"""`spider-study methods`: the methods that spider-study evaluate knows."""

from __future__ import annotations

from spidertensor.cli import options, output


def methods(as_json: options.AsJson = False) -> None:
    """List the methods of evaluate and experiment."""
    from spidertensor_study.registry import METHODS

    if as_json:
        output.print_json({name: entry.description for name, entry in METHODS.items()})
    else:
        output.print_pairs(
            "", [(name, f"{entry.label}: {entry.description}") for name, entry in METHODS.items()]
        )
