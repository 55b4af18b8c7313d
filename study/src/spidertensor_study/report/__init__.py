"""Draw figures and pages from rows. They show what is in a row, or a mean, deviation, count or test of rows.

    panels.py   what all figures share
    runs.py     rows of experiments as runs, and the mean and deviation of a cell over its seeds
    costs.py    runs -> cost of an entry with each method
    paired.py   two methods over shared seeds: t test and Holm's correction
    verdicts.py, behaviour.py, approximations.py, claims.py
                runs -> the paper's claims, and whether they hold
    tables.py   runs -> tables of text
    scores.py   runs -> figures of scores: over rank and batch size, over the stream, in time order
    standing.py runs -> one figure of every method in the usual setting, with its cost
    insight.py  runs -> figures of time, weights, calibration and the members of a committee
    html.py     claims, tables and figures as HTML
    markdown.py claims as Markdown
    page.py     all of it as one page, with its PNGs

Importing loads no matplotlib; drawing does.
"""

from spidertensor_study.report.page import write

__all__ = ["write"]
