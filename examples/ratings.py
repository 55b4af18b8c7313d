"""Ratings: predict films that nobody has rated yet from their genres, and say why.

Needs pip install '.[plot]'. The ratings are those of `spider sample`, made up. Twenty of the hundred films,
with all of their ratings, are kept from the models.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa

from spidertensor import Many, SpiderRegressor
from spidertensor.demo.ratings import HEADER, ratings

table = pa.table(dict(zip(HEADER, zip(*ratings(), strict=True), strict=True)))
stars, film = np.array(table["rating"], float), np.array(table["movie"])
new = np.isin(film, np.random.default_rng(0).choice(np.unique(film), size=20, replace=False))
last = ~new & (np.arange(len(film)) > 0.9 * len(film))  # known films, at the end of the year
past = ~new & ~last

genres = Many("genres", sep="|")
described = SpiderRegressor(modes={"user": [], "movie": [genres]}).fit(table.filter(past), stars[past])
ids_alone = SpiderRegressor(modes={"user": [], "movie": []}).fit(table.filter(past), stars[past])


def error(model, rows):
    guess = stars[past].mean() if model is None else model.predict(table.filter(rows))
    return np.mean((stars[rows] - guess) ** 2) ** 0.5


warnings.filterwarnings("ignore", "column movie: 100% of the ids")  # that films are new is the point
models = {"with genres": described, "ids alone": ids_alone, "mean (floor)": None}
errors = {name: [error(model, rows) for rows in (last, new)] for name, model in models.items()}
print(f"RMSE in stars  {last.sum()} of known films  {new.sum()} of new films")
for name, (known, unknown) in errors.items():
    print(f"{name:15}{known:15.2f}{unknown:18.2f}")
low, high = described.predict_interval(table.filter(new), coverage=0.9)
print(f"90 % intervals hold {np.mean((low <= stars[new]) & (stars[new] <= high)):.0%} of the new ones")

# The films come out tomorrow: describe them, and rank them among who has clear tastes.
unrated = table.filter(new).select(["movie", "genres"]).group_by("movie").aggregate([("genres", "min")])
coming = {"movie": unrated["movie"], "genres": unrated["genres_min"]}
described.set_attributes("movie", coming)
ranked = described.recommend({"user": 172}, over="movie", candidates=coming["movie"], n=3)
for each in ranked:
    print(f"user 172 may like {each.id}: {each.mean:.1f} ± {each.std:.1f}")

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), width_ratios=(1, 2), layout="constrained")
left.bar(list(errors), [unknown for _, unknown in errors.values()], color=["C0", "C1", "0.7"])
left.set(title="RMSE, new films")
left.tick_params(axis="x", rotation=30)
described.explain({"user": 172, "movie": ranked[0].id}).plot(right)
figure.savefig("ratings.png", dpi=100)
