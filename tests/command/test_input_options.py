"""Files as users have them: missing ids, delimiters, encodings, decimal commas, zips, bins, no rows."""

from __future__ import annotations

import io
import json
import os
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import spidertensor
from spidertensor import cli, sources
from spidertensor.sources import MISSING_ID, Bins, SourceError, bins, lines, read, source_by_name
from spidertensor.sources.bins import from_json
from spidertensor.sources.encodings import Transcoded
from spidertensor.sources.zip_member import Unzipped

pytestmark = pytest.mark.usefixtures("folder", "warm_kernels")

SMALL = ("--rank", "2", "--hidden", "4", "--committee", "1", "--quiet")
FIT = ("--modes", "user,movie", "--value", "rating", *SMALL)


@pytest.fixture
def spider(capsys):
    """Call the command in this process: it must succeed; what it printed."""

    def call(*arguments) -> str:
        with pytest.raises(SystemExit) as stop:
            cli.main([str(each) for each in arguments])
        printed = capsys.readouterr()
        assert not stop.value.code, printed.err
        return printed.out + printed.err

    return call


@pytest.fixture
def fails(capsys):
    """Call the command: it must fail with code 2 and one line, which is returned."""

    def call(*arguments) -> str:
        with pytest.raises(SystemExit) as stop:
            cli.main([str(each) for each in arguments])
        assert stop.value.code == 2
        return capsys.readouterr().err.splitlines()[-1]

    return call


def rows(n=400, seed=0) -> list[tuple[str, str, float]]:
    rng = np.random.default_rng(seed)
    users, movies = rng.integers(20, size=n).tolist(), rng.integers(12, size=n).tolist()
    return [
        (f"Zoë{u}", f"m{m}", round(2 + np.sin(u) + np.cos(m), 2)) for u, m in zip(users, movies, strict=True)
    ]


def text_of(table, delimiter=",", decimal=".") -> str:
    body = [delimiter.join([u, m, str(r).replace(".", decimal)]) for u, m, r in table]
    return "\n".join([delimiter.join(["user", "movie", "rating"]), *body, ""])


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def good_rows(source, **how):
    """All good rows of a source, as tuples."""
    chunks = list(read(source, ["user", "movie"], "rating", **how))
    return [entry for chunk in chunks for entry in zip(*map(list, chunk.columns), chunk.values, strict=True)]


# --- missing ids ---


def missing_file(kind: str, folder: Path) -> Path:
    """A row without a movie, and in JSON and Parquet one whose movie is an empty text."""
    users, movies, ratings = ["a", "b", "c", "d"], ["x", None, "", "x"], [1.0, 2.0, 3.0, 4.0]
    path = folder / f"a.{kind}"
    if kind == "csv":
        path.write_text("user,movie,rating\na,x,1\nb,,2\nc,z,3\nd,x,4\n")
    elif kind == "jsonl":
        records = [
            dict(zip(("user", "movie", "rating"), each, strict=True))
            for each in zip(users, movies, ratings, strict=True)
        ]
        path.write_text("".join(json.dumps(each) + "\n" for each in records))
    else:
        parquet.write_table(pa.table({"user": users, "movie": movies, "rating": ratings}), path)
    return path


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_missing_id_is_bad_or_left_out_or_a_node_that_is_no_other(folder, kind):
    source = source_by_name(str(missing_file(kind, folder)))
    third = ("c", "z" if kind == "csv" else "", 3.0)
    good = [("a", "x", 1.0), third, ("d", "x", 4.0)]
    assert good_rows(source) == good
    (chunk,) = read(source, ["user", "movie"], "rating")
    assert [each.reason for each in chunk.bad] == ["movie is missing"]
    assert good_rows(source, missing="skip") == good
    (chunk,) = read(source, ["user", "movie"], "rating", missing="skip")
    assert (chunk.bad, chunk.skipped) == ([], 1)
    assert good_rows(source, missing="own") == [good[0], ("b", MISSING_ID, 2.0), *good[1:]]


def test_a_missing_integer_or_float_is_a_node_of_its_own_too(folder):
    (folder / "a.csv").write_text("user,movie,rating\n1,7,1\n2,,2\n")
    assert good_rows(source_by_name("a.csv"), missing="own") == [(1, 7, 1.0), (2, MISSING_ID, 2.0)]
    table = pa.table({"user": [1.0, float("nan")], "movie": pa.array([None, 3]), "rating": [1, 2]})
    parquet.write_table(table, "a.parquet")
    assert good_rows(source_by_name("a.parquet"), missing="own") == [
        (1.0, MISSING_ID, 1.0),
        (MISSING_ID, 3, 2.0),
    ]


def test_a_row_without_an_id_and_with_a_bad_value_is_bad(folder):
    (folder / "a.csv").write_text("user,movie,rating\n1,,x\n1,2,3\n")
    (chunk,) = read(source_by_name("a.csv"), ["user", "movie"], "rating", missing="skip")
    assert ([each.row for each in chunk.bad], chunk.skipped) == ([2], 0)


def test_a_model_keeps_what_a_missing_id_is(folder, spider, fails):
    table = [(u, "" if i % 7 == 0 else m, r) for i, (u, m, r) in enumerate(rows())]
    (folder / "a.csv").write_text(text_of(table[:300]))
    assert "movie is missing (to skip rows without an id, use --missing-id skip" in fails(
        "fit", "a.csv", *FIT
    )
    spider("fit", "a.csv", *FIT, "--missing-id", "own")
    (folder / "a.csv").write_text(text_of(table))
    spider("fit", "a.csv", "--resume", "--quiet")
    spider("fit", "a.csv", *FIT, "--missing-id", "own", "--model", "whole.spider")
    model, whole = spidertensor.load("a.spider"), spidertensor.load("whole.spider")
    assert MISSING_ID in whole.factors()[1].ids
    assert model.n_entries_ == 400
    np.testing.assert_array_equal(model.factors()[1].mean, whole.factors()[1].mean)
    (folder / "p.csv").write_text("user,movie\nZoë1,\n")
    assert "0 of them with an unseen id" in spider("predict", "a.spider", "p.csv")
    assert "movie is missing" in fails("predict", "a.spider", "p.csv", "--missing-id", "error")
    assert "1 row without an id skipped" in spider("predict", "a.spider", "p.csv", "--missing-id", "skip")
    assert json.loads(spider("info", "a.spider", "--json"))["position"]["missing_id"] == "own"


def test_rows_left_out_are_counted(folder, spider):
    (folder / "a.csv").write_text(text_of([("", "x", 1), *rows(50), ("", "y", 2)]))
    out = spider("fit", "a.csv", *FIT, "--missing-id", "skip", "--json")
    assert {"skipped_rows": 2, "bad_rows": 0, "entries": 50}.items() <= json.loads(out).items()


# --- how a text is written ---

FORMS = {
    "semicolons and decimal commas": (";", ",", "utf-8"),
    "latin-1": ("|", ".", "latin-1"),
    "utf-16 with its mark": ("\t", ",", "utf-16"),
    "big-endian utf-16": (",", ".", "utf-16-be"),
    "utf-8 with its mark": (";", ".", "utf-8-sig"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("packed", [False, True])
def test_the_same_rows_however_they_are_written(folder, monkeypatch, form, packed):
    delimiter, decimal, encoding = FORMS[form]
    data = text_of(rows(), delimiter, decimal).encode(encoding)
    path = folder / ("a.zip" if packed else "a.csv")
    zipped(path, {"a.csv": data}) if packed else path.write_bytes(data)
    for block in (7, 1 << 20):  # 7: characters and lines are cut anywhere
        monkeypatch.setattr(lines, "BLOCK_BYTES", block)
        source = source_by_name(str(path), delimiter=delimiter, encoding=encoding, decimal=decimal)
        assert good_rows(source) == rows()


@pytest.mark.parametrize("form", ["semicolons and decimal commas", "utf-16 with its mark"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_stop_changes_nothing_however_a_file_is_written(folder, monkeypatch, spider, fails, form, packed):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1000)
    delimiter, decimal, encoding = FORMS[form]
    table = rows(600)
    table[411] = ("", "m1", 3.0)  # the first run stops here
    data = text_of(table, delimiter, decimal).encode(encoding)
    path = zipped(folder / "a.zip", {"a.csv": data}) if packed else folder / "a.csv"
    if not packed:
        path.write_bytes(data)
    delimiter = {"\t": "tab"}.get(delimiter, delimiter)
    how = ("--delimiter", delimiter, "--encoding", encoding, "--decimal", decimal)
    assert "line 413: user is missing" in fails("fit", path, *FIT, "--passes", "1", *how)
    assert 200 < spidertensor.load("a.spider").n_entries_ < 412
    spider("fit", path, "--resume", "--missing-id", "skip", "--quiet", *how)
    spider("fit", path, *FIT, "--passes", "1", *how, "--missing-id", "skip", "--model", "whole.spider")
    assert Path("a.spider").read_bytes() == Path("whole.spider").read_bytes()
    out = spider("predict", "a.spider", path, *how, "--missing-id", "skip")
    assert out.splitlines()[0] == "user,movie,rating,mean,std"


def test_bytes_that_are_no_text_spoil_their_row_only(folder):
    (folder / "a.csv").write_bytes(
        "user,movie,rating\né,1,2\n?,1,2\né,3,4\n".encode("cp1252").replace(b"?", b"\x81")
    )
    (chunk,) = read(source_by_name("a.csv", encoding="cp1252"), ["user", "movie"], "rating")
    assert [(each.row, each.reason) for each in chunk.bad] == [(3, "not cp1252 text")]
    assert chunk.columns[0].tolist() == ["é", "é"]
    (folder / "b.csv").write_bytes("user,movie,rating\n1,1,2\n1,2,3".encode("utf-16-le")[:-1])
    chunks = list(read(source_by_name("b.csv", encoding="utf-16-le"), ["user", "movie"], "rating"))
    assert [each.row for chunk in chunks for each in chunk.bad] == [3]
    assert [row for chunk in chunks for row in chunk.rows] == [2]


def test_half_a_character_of_a_pipe_is_not_its_end():
    stream = Transcoded(io.BytesIO("é\n".encode("utf-16-le")), "utf-16-le")
    assert [stream.read(1) for _ in range(6)] == [None, "é".encode(), None, b"\n", b"", b""]


@pytest.mark.parametrize(
    ("number", "reason"),
    [("1.234,5", "is not a number with a decimal comma; thousands separators are not supported"),
     ("1.5", "is not a number with a decimal comma"), ("1,234,5", "is not a number"),
     ("1 234", "is not a number")],
)  # fmt: skip
def test_with_a_decimal_comma_nothing_else_is_guessed(folder, number, reason):
    (folder / "a.csv").write_text(f"user;movie;rating\n1;2;2,5\n1;3;{number}\n")
    (chunk,) = read(source_by_name("a.csv", delimiter=";", decimal=","), ["user", "movie"], "rating")
    assert chunk.values.tolist() == [2.5]
    assert chunk.bad[0].reason.startswith(f"rating {number!r} {reason}")


def test_quoted_decimal_commas_may_stand_between_commas(folder):
    (folder / "a.csv").write_text('user,movie,rating\n1,2,"2,5"\n')
    assert good_rows(source_by_name("a.csv", decimal=",")) == [(1, 2, 2.5)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a.csv", "--delimiter", ";;"), "a delimiter is one ASCII character other than a quote, not ';;'"),
        (("a.csv", "--delimiter", '"'), "a delimiter is one ASCII character"),
        (("a.csv", "--encoding", "latin-99"), "unknown encoding 'latin-99'"),
        (("a.csv", "--encoding", "base64"), "unknown encoding 'base64'"),
        (("a.csv", "--decimal", ":"), "the decimal mark is . or a comma, not ':'"),
        (("a.jsonl", "--decimal", ","), "delimiter and decimal mark are for csv and tsv, not for jsonl"),
        (("a.parquet", "--encoding", "latin-1"), "parquet text is always UTF-8"),
        (("-", "--format", "csv.zip"), "standard input cannot be a zip"),
        (("a.csv", "--bin", "price"), "--bin takes MODE=RULE"),
        (("a.csv", "--bin", "price=deciles"), "--bin price: bins are quantiles:20 (2 to 10,000), width:0.5"),
        (("a.csv", "--bin", "price=edges:5,1"), "not 'edges:5,1'"),
        (("a.csv", "--bin", "price=width:0"), "not 'width:0'"),
        (("a.csv", "--bin", "rating=width:1"), "--bin rating: bins need a mode; name it in --modes as well"),
    ],
)
def test_impossible_options_are_refused_before_anything_is_read(fails, arguments, message):
    assert message in fails("fit", *arguments, *FIT)


def test_messages_name_the_option_that_helps(folder, fails):
    (folder / "a.csv").write_text("user;movie;rating\n1;2;3\n")
    assert "the columns are separated by ';': name it with --delimiter" in fails("fit", "a.csv", *FIT)
    (folder / "b.csv").write_bytes("user,movie,rating\n".encode("utf-16"))
    assert "UTF-16 text: use --encoding utf-16" in fails("fit", "b.csv", *FIT)


# --- zip ---


def test_of_a_zip_one_file_is_read_and_what_macos_adds_is_not(folder):
    data = text_of(rows()).encode()
    path = zipped(folder / "a.zip", {"data.csv": data, "__MACOSX/._data.csv": b"x"})
    with zipfile.ZipFile(path, "a") as archive:
        archive.mkdir("data")
    assert good_rows(source_by_name(str(path))) == rows()
    assert good_rows(source_by_name(str(zipped(folder / "b.csv.zip", {"data.txt": data})))) == rows()
    assert good_rows(source_by_name(str(zipped(folder / "c.zip", {"data.txt": data})), "csv.zip")) == rows()
    for kind in ("csv", "csv.zip"):  # both are about the file in the zip
        assert good_rows(source_by_name("c.zip", kind)) == rows()
    with pytest.raises(SourceError, match="unknown format"):
        source_by_name("a.zip", "cvs")


def test_zips_that_cannot_be_read_say_why(folder):
    data = text_of(rows()).encode()
    good = zipped(folder / "good.zip", {"a.csv": data}).read_bytes()
    with zipfile.ZipFile(folder / "lzma.zip", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.csv", data)
    encrypted = bytearray(good)
    encrypted[6] |= 1
    encrypted[good.rfind(b"PK\x01\x02") + 8] |= 1
    damaged = bytearray(good)
    damaged[len(good) // 2] ^= 255
    for name, content in {
        "encrypted": encrypted,
        "damaged": damaged,
        "cut": good[:500],
        "text": data,
    }.items():
        (folder / f"{name}.zip").write_bytes(content)
    zipped(folder / "none.zip", {})
    zipped(folder / "two.zip", {"a.csv": data, "b.csv": data})
    zipped(folder / "parquet.zip", {"a.parquet": b""})
    zipped(folder / "twice.zip", {"a.csv.gz": b""})
    reasons = {
        "two": "the zip has 2 files (a.csv, b.csv): unpack it and pass one of them",
        "none": "the zip has no file in it",
        "cut": "not a complete zip", "text": "not a complete zip", "damaged": "not a complete zip",
        "encrypted": "is encrypted", "lzma": "unsupported zip compression", "parquet": "unknown format",
        "twice": "compressed twice",
    }  # fmt: skip
    for name, reason in reasons.items():
        with pytest.raises(SourceError) as caught:
            good_rows(source_by_name(f"{name}.zip"))
        assert reason in str(caught.value)
        assert f"{name}.zip" in str(caught.value)


def test_a_zip_cannot_come_through_a_pipe(folder):
    end, start = os.pipe()
    os.write(start, zipped(folder / "a.zip", {"a.csv": b"user\n"}).read_bytes())
    os.close(start)
    with pytest.raises(SourceError, match="a zip cannot be read from a pipe"):
        source_by_name(f"/dev/fd/{end}", "csv.zip")
    os.close(end)


def test_a_zip_is_never_unpacked_at_once(folder, monkeypatch):
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 4 << 20)
    path = zipped(folder / "a.zip", {"a.csv": b"0" * (6 << 20)})
    assert path.stat().st_size < 10_000
    with path.open("rb") as file:
        assert len(Unzipped("a.zip", file, "a.csv").read(1000)) <= 1000
    with pytest.raises(SourceError, match="a line of more than 4 MiB"):
        good_rows(source_by_name(str(path)))


def test_predictions_are_not_written_to_a_zip(folder, spider, fails):
    (folder / "a.csv").write_text(text_of(rows(50)))
    spider("fit", "a.csv", *FIT)
    assert "zip files can only be read" in fails("predict", "a.spider", "a.csv", "--out", "p.zip")


# --- bins ---

BINS = ("--modes", "user,price", "--value", "sold", *SMALL)


def prices(n=500, seed=0, scale=1.0) -> str:
    rng = np.random.default_rng(seed)
    user, price = rng.integers(9, size=n), np.round(scale * rng.exponential(size=n), 3)
    sold = np.where(price > 1, 2.0, -1.0) + 0.1 * np.sin(user)
    body = "".join(f"{u},{p},{s:.3f}\n" for u, p, s in zip(user, price, sold, strict=True))
    return "user,price,sold\n" + body


def test_every_number_has_the_bin_whose_name_says_so():
    numbers = np.array([-1.0, 0.1, 0.3, 1.0, 4.99, 5.0, 10.0, 1e9, np.nan])
    edges = Bins("edges:0.1,5,10")
    ids = ["below 0.1", *["0.1 to 5"] * 4, "5 to 10", *["from 10"] * 2, MISSING_ID]
    assert edges.ids(numbers).tolist() == ids
    width = Bins("width:0.1")
    assert width.ids(numbers[1:4]).tolist() == ["0.1 to 0.2", "0.3 to 0.4", "1 to 1.1"]
    assert Bins("width:5").ids(numbers[:1]).tolist() == ["-5 to 0"]


def test_quantiles_hold_equally_many_and_equal_numbers_stay_together():
    numbers = np.random.default_rng(0).permutation(1000) / 8
    quantiles = Bins("quantiles:10")
    quantiles.freeze(numbers)
    _, counts = np.unique(quantiles.ids(numbers), return_counts=True)
    assert len(counts) == 10
    assert counts.min() >= 99
    quantiles.freeze(numbers + 1000)  # too late: they stay
    assert set(quantiles.ids(numbers + 1000)) == {f"from {quantiles.edges[-1]}"}
    many = Bins("quantiles:4")
    many.freeze(np.array([0.0] * 90 + [1.0, 2.0, 3.0, 4.0] * 5))
    ids = many.ids(np.array([0.0, 4.0]))
    assert ids[0] != ids[1] or many.edges == (0.0,)
    empty = Bins("quantiles:4")
    empty.freeze(np.array([np.nan]))
    assert empty.ids(np.array([3.0])).tolist() == ["any"]


def test_bins_do_not_depend_on_where_blocks_end(folder, monkeypatch):
    monkeypatch.setattr(bins, "QUANTILE_NUMBERS", 100)
    (folder / "a.csv").write_text(prices())
    found = []
    for block in (50, 700, 1 << 20):
        monkeypatch.setattr(lines, "BLOCK_BYTES", block)
        rule = Bins("quantiles:7")
        chunks = read(source_by_name("a.csv"), ["user", "price"], "sold", bins=[None, rule])
        ids = [each for chunk in chunks for each in chunk.columns[1].tolist()]
        found.append((rule.edges, ids))
    assert found[0] == found[1] == found[2]
    first = np.array([float(line.split(",")[1]) for line in prices().splitlines()[1:101]])
    assert found[0][0] == tuple(np.unique(np.sort(first)[np.ceil(np.arange(1, 7) / 7 * 100).astype(int) - 1]))


def test_a_quiet_pipe_does_not_wait_for_ever_for_its_bins():
    quiet = sources.Chunk([], None, np.empty(0, int), [], 0, None, quiet=True)
    chunk = sources.Chunk([np.arange(4.0)], np.zeros(4), np.arange(4), [], 4, None)
    rule = Bins("quantiles:2")
    given = bins.binned(iter([chunk, *[quiet] * bins.MAX_QUIET_CHUNKS, chunk]), [rule])
    got = list(given)
    assert [each.quiet for each in got] == [True] * (bins.MAX_QUIET_CHUNKS - 1) + [False, False]
    assert got[-1].columns[0].tolist() == ["below 1", "from 1", "from 1", "from 1"]


def test_the_bins_of_a_model_stay(folder, monkeypatch, spider, fails):
    """For --resume, --add, predict and recommend: also where the quantiles would now be others."""
    monkeypatch.setattr(bins, "QUANTILE_NUMBERS", 100)
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1000)
    (folder / "a.csv").write_text(prices().replace("\n7,", "\n,", 60))
    rule = ("--bin", "price=quantiles:5")
    message = fails("fit", "a.csv", *BINS, *rule)
    assert "user is missing" in message
    (folder / "a.csv").write_text(prices(300))
    advice = "--modes user,movie,offer=price --kind price=number"
    assert advice in spider("fit", "a.csv", *BINS, *rule)
    (folder / "a.csv").write_text(prices(300) + prices(300, 1, 50.0).partition("\n")[2])
    assert advice not in spider("fit", "a.csv", "--resume", "--quiet", *rule)
    spider("fit", "a.csv", *BINS, *rule, "--model", "whole.spider")
    assert Path("a.spider").read_bytes() == Path("whole.spider").read_bytes()
    assert "the command says {'price': 'width:1'}" in fails(
        "fit", "a.csv", "--resume", "--bin", "price=width:1"
    )
    before = spidertensor.load("a.spider").n_nodes_
    (folder / "b.csv").write_text(prices(200, 2, 9.0))
    spider("fit", "b.csv", "--model", "a.spider", "--add", "--quiet")
    model = spidertensor.load("a.spider")
    assert model.n_nodes_ == before == (9, 5)
    assert "quantiles:5, 4 edges" in spider("info", "a.spider")
    (folder / "p.csv").write_text("user,price\n1,0.01\n1,44\n")
    out = spider("predict", "a.spider", "p.csv")
    assert "0 of them with an unseen id" in out
    low, high = (float(line.split(",")[2]) for line in out.splitlines()[1:3])
    assert low == pytest.approx(-1, abs=0.5)
    assert high == pytest.approx(2, abs=0.5)
    ranked = [spider("recommend", "a.spider", "--given", f"price={text}", "--over", "user", "--json")
              for text in ("44", model.position_["bins"][1]["edges"][-1], "0.01")]  # fmt: skip
    means = [json.loads(each)["nodes"][0]["mean"] for each in ranked]
    assert means[0] == means[1] > means[2]


def test_a_pipe_says_from_how_many_numbers_its_quantiles_are(folder, monkeypatch, spider):
    end, start = os.pipe()
    os.write(start, prices(100).encode())
    os.close(start)
    with open(end) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        out = spider("fit", "-", *BINS, "--bin", "price=quantiles:4", "--model", "a.spider")
    assert "note: column price: quantiles are based on only 100 numbers" in out


def test_a_number_that_is_none_is_a_bad_row_or_a_missing_id(folder):
    (folder / "a.csv").write_text("user;price;sold\n1;2,5;1\n1;abc;1\n1;;1\n1;NaN;1\n1;inf;1\n")
    source = source_by_name("a.csv", delimiter=";", decimal=",")

    def ids(missing):
        (chunk,) = read(source, ["user", "price"], "sold", bins=[None, Bins("edges:3")], missing=missing)
        return chunk.columns[1].tolist(), [(each.row, each.reason) for each in chunk.bad]

    bad = [(3, "price 'abc' is not a number"), (6, "price inf is not finite")]
    assert ids("own") == (["below 3", MISSING_ID, MISSING_ID], bad)
    assert ids("skip") == (["below 3"], bad)
    assert ids("error")[1] == sorted([*bad, (4, "price is missing"), (5, "price is missing")])


def test_bins_of_json_and_parquet(folder):
    records = [{"user": 1, "price": 2, "sold": 1.0}, {"user": 2, "price": 7.5, "sold": 2.0}]
    (folder / "a.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    parquet.write_table(pa.table({"user": [1, 2], "price": [2.0, 7.5], "sold": [1, 2]}), "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        (chunk,) = read(source_by_name(name), ["user", "price"], "sold", bins=[None, Bins("edges:3")])
        assert chunk.columns[1].tolist() == ["below 3", "from 3"]
    parquet.write_table(pa.table({"user": [1], "price": ["2"], "sold": [1]}), "b.parquet")
    with pytest.raises(SourceError, match="column price is string, not a number"):
        list(read(source_by_name("b.parquet"), ["user", "price"], "sold", bins=[None, Bins("edges:3")]))


@pytest.mark.parametrize(
    "stored",
    [{}, [], 3, {"rule": "edges:1", "edges": None}, {"rule": "quantiles:3", "edges": [2.0, 1.0]},
     {"rule": "quantiles:3", "edges": [float("nan")]}, {"rule": "quantiles:3", "edges": ["1"]},
     {"rule": "x", "edges": [1.0]}, {"rule": "quantiles:3", "edges": [True]},
     {"rule": "quantiles:3", "edges": list(range(20_000))}],
)  # fmt: skip
def test_bins_of_a_strange_file_are_refused(stored):
    with pytest.raises(SourceError):
        from_json(stored)


def test_damaged_bins_of_a_model_are_an_error(folder, spider, fails):
    (folder / "a.csv").write_text(prices(100))
    spider("fit", "a.csv", *BINS, "--bin", "price=edges:1")
    model = spidertensor.load("a.spider")
    for stored in ([None], [None, {"rule": "edges:1"}]):
        model.save("a.spider", model.position_ | {"bins": stored})
        assert "bins in the model file are damaged" in fails("predict", "a.spider", "a.csv")


def test_a_file_of_one_mode_is_a_mean_of_each_id(folder, spider):
    (folder / "a.csv").write_text("arm,reward\n" + "b,5.1\na,1.1\nb,4.9\na,0.9\nc,3\n" * 40)
    spider("fit", "a.csv", "--modes", "arm", "--value", "reward", *SMALL)
    nodes = json.loads(spider("recommend", "a.spider", "--over", "arm", "--json"))["nodes"]
    assert [each["id"] for each in nodes] == ["b", "c", "a"]
    assert nodes[0]["mean"] == pytest.approx(5, abs=0.3)


# --- no rows ---


@pytest.mark.parametrize("into", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_no_rows_predict_to_no_rows(folder, spider, kind, into):
    (folder / "a.csv").write_text(text_of(rows(50)))
    spider("fit", "a.csv", *FIT)
    if kind == "parquet":
        parquet.write_table(
            pa.table({"user": pa.array([], pa.string()), "movie": pa.array([], pa.string())}), "p.parquet"
        )
    else:
        Path(f"p.{kind}").write_text("user,movie\n" if kind == "csv" else "")
    out = spider("predict", "a.spider", f"p.{kind}", "--out", f"out.{into}", "--interval", "0.9")
    assert "0 rows predicted" in out
    if into == "parquet":
        table = parquet.read_table("out.parquet")
        assert (table.num_rows, table.column_names) == (0, ["user", "movie", "mean", "std", "low", "high"])
    else:
        expected = "user,movie,mean,std,low,high\n" if into == "csv" else ""
        assert Path(f"out.{into}").read_text() == expected


def test_nothing_to_fit_says_so(folder, fails):
    (folder / "a.csv").write_text("user,movie,rating\n")
    assert fails("fit", "a.csv", *FIT) == "spider: a.csv: no rows to learn"
    (folder / "b.csv").write_text("user,movie,rating\n,1,2\n")
    assert "no good rows to learn" in fails("fit", "b.csv", *FIT, "--missing-id", "skip")
    assert not Path("a.spider").exists()
