"""Attributes of users and movies, from the prepared file and from the official archives."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

from spidertensor_study import datasets
from spidertensor_study.datasets import DatasetError

OLD = {
    "ml-100k/u.data": "10\t7\t5\t300\n2\t3\t1\t100\n2\t9\t1\t100\n",
    "ml-100k/u.user": "2|31|F|writer|10001\n5|9|M|none|1\n10|53|M|other|94043\n",
    "ml-100k/u.genre": "Action|0\nComedy|1\nDrama|2\n\n",
    "ml-100k/u.item": "3|Brazil|01-Jan-1985||x|0|0|0\n7|Net, The (1995)|01-Jan-1996||x|1|0|1\n"
    "9|Yo (Me) (1960)|||x|0|1|0\n",
}
NEW = {
    "ml-1m/ratings.dat": "10::7::5::300\n2::3::1::100\n2::9::1::100\n",
    "ml-1m/users.dat": "2::F::25::20::10001\n5::M::1::10::1\n10::M::50::0::94043\n",
    "ml-1m/movies.dat": "1::Not rated (1990)::Drama\n3::Brazil::Drama\n7::Net, The (1995)::Action|Drama\n"
    "9::Yo (Me) (1960)::Comedy\n",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SPIDER_DATA", str(tmp_path))
    monkeypatch.setattr(datasets, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "file", "members", "ages", "no_genre"),
    [
        ("movielens-100k", "ml-100k.zip", OLD, [31, 53], []),
        ("movielens-1m", "ml-1m.zip", NEW, [25, 50], ["Drama"]),
    ],
)
def test_the_official_archives(folder, name, file, members, ages, no_genre):
    with zipfile.ZipFile(folder / file, "w") as archive:
        for member, text in members.items():
            archive.writestr(member, text)
    user, movie = datasets.attributes(name).values()
    assert user["age"].tolist() == ages  # users 2 and 10: the others have no rating, so no node
    assert user["gender"].tolist() == ["F", "M"]
    assert user["occupation"].tolist() == ["writer", "other"]
    assert movie["title"].tolist() == ["Brazil", "Net, The", "Yo (Me)"]
    np.testing.assert_array_equal(movie["year"], [np.nan, 1995, 1960])
    assert movie["genres"].tolist() == [no_genre, ["Action", "Drama"], ["Comedy"]]


@pytest.mark.parametrize("name", ["movielens-100k", "movielens-1m"])
def test_the_prepared_files(data_folder, monkeypatch, name):
    monkeypatch.setenv("SPIDER_DATA", str(data_folder))
    if not (data_folder / f"{name}-attributes.npz").is_file():
        pytest.skip(f"no {name}-attributes.npz")
    found, shape = datasets.attributes(name), datasets.load(name).shape
    for mode, n in zip(("user", "movie"), shape, strict=True):
        assert {column.shape for column in found[mode].values()} == {(n,)}
    assert set(found["user"]["gender"].tolist()) == {"F", "M"}
    assert found["movie"]["title"][0] == "Toy Story"
    assert found["movie"]["year"][0] == 1995
    assert found["movie"]["genres"][0] == ["Animation", "Children's", "Comedy"]


def test_what_to_do_without_them(folder):
    with pytest.raises(DatasetError, match=r"movielens-1m-attributes\.npz or ml-1m\.zip"):
        datasets.attributes("movielens-1m")
    with pytest.raises(DatasetError, match="flights has no attributes"):
        datasets.attributes("flights")
    (folder / "movielens-1m-attributes.npz").write_bytes(b"no archive")
    with pytest.raises(DatasetError, match="no valid attributes"):
        datasets.attributes("movielens-1m")
