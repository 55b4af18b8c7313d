"""Evaluation of methods, on your own data or on a named data set.

protocols.py        held out and prequential: score any Method, as rows
last_out.py         the same for events, with ranks instead of errors
metrics.py, ranking_metrics.py
floors.py, popularity.py, item_cosine.py
                    baselines that a method has to beat
dataset.py, own_file.py
                    entries with their splits; a user's file as a data set
methods.py          the methods and data sets that can be evaluated by name
draw.py             figures of rows
"""
