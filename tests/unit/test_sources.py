"""Sources: every format gives the same entries; a bad row is found by itself; ids never change their type."""

from __future__ import annotations

import csv
import gzip
import json
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from spidertensor.sources import Chunk, SourceError, lines, parquet_file, read, source_by_name
from spidertensor.spider.likelihoods import PROBIT

MODES = ["user", "movie"]


def all_of(chunks) -> Chunk:
    """One chunk of all, with lists instead of arrays."""
    chunks = list(chunks)
    columns = [
        [raw for chunk in chunks for raw in chunk.columns[k].tolist()] for k in range(len(chunks[0].columns))
    ]
    values = [value for chunk in chunks if chunk.values is not None for value in chunk.values.tolist()]
    rows = [row for chunk in chunks for row in chunk.rows.tolist()]
    bad = [each for chunk in chunks for each in chunk.bad]
    return Chunk(columns, values, rows, bad, chunks[-1].end, chunks[-1].share)  # pyright: ignore


def from_text(tmp_path, text, *, name="a.csv", modes=MODES, value: str | None = "rating", **how):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return all_of(read(source_by_name(str(path)), modes, value, **how))


def write(path, records):
    """Records in the format of the file's name."""
    kind = source_by_name(str(path))
    if kind.format.name == "parquet":
        parquet.write_table(pa.Table.from_pylist(records), path)
        return
    if kind.format.name == "jsonl":
        text = "".join(json.dumps(record) + "\n" for record in records)
    else:
        comma = "\t" if kind.format.name == "tsv" else ","
        text = "".join(
            comma.join(map(str, row)) + "\n" for row in [records[0], *(r.values() for r in records)]
        )
    with pa.output_stream(path, compression=kind.compression) as file:
        file.write(text.encode())


RECORDS = [
    {"time": i, "user": 7 * i % 50, "movie": f"film {i % 11}", "rating": i % 9 / 2} for i in range(600)
]
NAMES = [
    "a.csv",
    "a.tsv",
    "a.jsonl",
    "a.parquet",
    "a.csv.gz",
    "a.csv.zst",
    "a.tsv.gz",
    "a.jsonl.gz",
    "a.jsonl.zst",
]


@pytest.mark.slow
@pytest.mark.parametrize("block", [100, 1 << 20])
@pytest.mark.parametrize("name", NAMES)
def test_every_format_gives_the_same_entries(tmp_path, monkeypatch, name, block):
    monkeypatch.setattr(lines, "BLOCK_BYTES", block)
    monkeypatch.setattr(parquet_file, "BATCH_ROWS", block)
    write(tmp_path / name, RECORDS)
    source = source_by_name(str(tmp_path / name))
    whole = all_of(read(source, MODES, "rating"))
    first = 2 if source.format.name in ("csv", "tsv") else 1  # the line after the header
    assert whole.columns == [[r["user"] for r in RECORDS], [r["movie"] for r in RECORDS]]
    assert whole.values == [r["rating"] for r in RECORDS]
    assert whole.rows == list(range(first, 600 + first))
    assert (whole.bad, whole.end) == ([], 599 + first)
    assert whole.share == pytest.approx(1, abs=0.01)
    for skip in (first, 210, 599 + first):
        rest = list(read(source, MODES, "rating", skip=skip))
        rows = [row for chunk in rest for row in chunk.rows.tolist()]
        assert rows == whole.rows[skip + 1 - first :]
    with pytest.raises(SourceError, match="ends before"):
        list(read(source, MODES, "rating", skip=5000))


def test_an_id_in_a_text_file_is_decided_by_its_text_alone(tmp_path):
    """Wherever it stands, whatever stands beside it: the plain form of an int64 is an int."""
    texts = [
        "42",
        "0",
        "-7",
        "042",
        "4.0",
        "+4",
        "-0",
        "0x2A",
        " 42",
        "1e3",
        "nan",
        "NA",
        "True",
        "４２",
        "a\x00b",
    ]
    texts += [str(2**63 - 1), str(-(2**63)), str(2**63), "9" * 30, "é", '5" disk']
    ids = [42, 0, -7, *texts[3:15], 2**63 - 1, -(2**63), *texts[17:]]
    found = from_text(tmp_path, "user,rating\n" + "".join(f"{text},1\n" for text in texts), modes=["user"])
    assert found.columns == [ids]
    assert list(map(type, found.columns[0])) == list(map(type, ids))
    for text, raw in zip(texts, ids, strict=True):  # alone in its file, as the fast path may see it
        alone = from_text(tmp_path, f"user,rating\n{text},1\n", modes=["user"]).columns[0]
        assert alone == [raw]
        assert type(alone[0]) is type(raw)


def test_a_later_text_does_not_change_the_ints_before(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 64)
    texts = [*map(str, range(100)), "x", *map(str, range(100)), ""]
    body = "user,movie,rating\n" + "".join(f"{text},1,2\n" for text in texts)
    found = from_text(tmp_path, body)
    assert found.columns[0] == [*range(100), "x", *range(100)]
    assert [each.reason for each in found.bad] == ["user is missing"]
    kept = from_text(tmp_path, body, all_text=[True, False])
    assert kept.columns[0] == texts[:-1]
    assert kept.columns[1] == [1] * 201
    assert len(kept.bad) == 1


def test_typed_files_keep_their_types(tmp_path):
    lines_ = [42, "42", 4.0, True, "", 2**70, "x"]
    text = "".join(json.dumps({"user": raw, "rating": 1}) + "\n" for raw in lines_)
    found = from_text(tmp_path, text, name="a.jsonl", modes=["user"])
    assert found.columns == [lines_]
    assert list(map(type, found.columns[0])) == list(map(type, lines_))
    columns = {
        "text": ["1", None, "2"], "code": pa.array(["1", "1", None]).dictionary_encode(), "small": [1, 2, 3],
        "number": [1.5, None, 2.5], "rating": [True, False, True],
        "large": pa.array([1, 2, 2**63], pa.uint64()),
    }  # fmt: skip
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")

    def of(*modes):
        return all_of(read(source_by_name(str(tmp_path / "a.parquet")), modes, "rating"))

    assert of("text").columns == [["1", "2"]]
    assert of("code").columns == [["1", "1"]]
    assert of("small", "large").columns == [[1, 2, 3], [1, 2, 2**63]]
    assert of("number").columns == [[1.5, 2.5]]
    assert of("small").values == [1, 0, 1]
    assert [(b.row, b.reason, b.raw) for b in of("code", "number").bad] == [
        (2, "number is missing", {"code": "1", "number": None, "rating": False}),
        (3, "code is missing", {"code": None, "number": 2.5, "rating": True}),
    ]


BAD_CSV = (
    "user,movie,text,rating\n"
    "1,2,t,3.5\n"
    ",2,t,3\n"  # 3
    "1,,t,3\n"
    "1,2,t,\n"  # 5
    "1,2,t,abc\n"
    "1,2,t,nan\n"  # 7
    "1,2,t,-inf\n"
    "1,2,t\n"  # 9
    "1,2,t,3,4\n"
    "\n"  # 11: not a row
    '1,2,"a\n'  # 12, 13: a line break in quotes
    'b",3\n'
    "1,2,t,1_0\n"  # 14
    '1,2,"a ""quoted"" text, and more",4\r\n'
    "2,1,t, 5 \n"  # 16
    "1,2,t,1e999\n"
)
REASONS = {
    3: "user is missing", 4: "movie is missing", 5: "rating is missing", 6: "rating 'abc' is not a number",
    7: "rating nan is not finite", 8: "rating -inf is not finite", 9: "3 fields instead of 4",
    10: "5 fields instead of 4", 12: "a quote is not closed on its line", 13: "2 fields instead of 4",
    14: "rating '1_0' is not a number", 17: "rating inf is not finite",
}  # fmt: skip


@pytest.mark.parametrize("block", [1, 30, 1 << 20])
def test_bad_rows_of_csv_are_found_one_by_one(tmp_path, monkeypatch, block):
    monkeypatch.setattr(lines, "BLOCK_BYTES", block)
    found = from_text(tmp_path, BAD_CSV)
    assert (found.columns, found.values) == ([[1, 1, 2], [2, 2, 1]], [3.5, 4, 5])
    assert found.rows == [2, 15, 16]
    assert {each.row: each.reason for each in found.bad} == REASONS
    shown = BAD_CSV.splitlines()
    assert all(each.raw == shown[each.row - 1] for each in found.bad)
    assert found.end == 17


def test_bytes_that_are_not_text_spoil_only_their_line(tmp_path):
    found = from_text(tmp_path, b"\xef\xbb\xbfuser,movie,rating\n1,\xff,2\n1,\xc3\xa9,2\n3\r4,1,2\n")
    assert found.columns == [[1], ["é"]]
    assert [(each.row, each.raw) for each in found.bad] == [(2, "1,\\xff,2"), (4, "3\r4,1,2")]
    assert found.bad[0].reason.startswith("not UTF-8 text")


def test_bad_rows_of_json_lines(tmp_path, monkeypatch):
    good = '{"user": 1, "movie": 2, "rating": 3}'
    bad = {
        2: ('{"user": 1, "movie": 2, "rating": ', "not JSON"), 3: ("[1, 2]", "not a JSON object"),
        4: ('{"user": 1, "rating": 3}', "movie is missing"),
        5: ('{"user": [1], "movie": 2, "rating": 3}', "user is a list, which cannot be an id"),
        6: ('{"user": 1, "movie": 2, "rating": "3"}', "rating '3' is not a number"),
        7: ('{"user": 1, "movie": 2, "rating": NaN}', "rating nan is not finite"),
        8: ('{"user": 1, "movie": 2}', "rating is missing"), 9: (f"{good} {good}", "not JSON"),
        10: ('{"user": 1e999, "movie": 2, "rating": 1}', "user is infinite"),
        12: (f'{{"user": 1, "movie": 2, "rating": 1{"0" * 400}}}', None), 13: ("[" * 100_000, "not JSON"),
    }  # fmt: skip
    texts = [bad[row][0] if row in bad else "" if row == 11 else good for row in range(1, 15)]
    for block in (1 << 20, 50):
        monkeypatch.setattr(lines, "BLOCK_BYTES", block)
        found = from_text(tmp_path, "\n".join(texts), name="a.jsonl")
        assert found.rows == [1, 14]
        assert (found.columns, found.values) == ([[1, 1], [2, 2]], [3, 3])
        assert [each.row for each in found.bad] == list(bad)
        for row, reason, raw in found.bad:
            assert raw == bad[row][0]
            assert bad[row][1] in (None, reason)


def test_labels(tmp_path):
    found = from_text(tmp_path, "user,movie,rating\n1,1,1\n1,2,0.0\n1,3,0.5\n1,4,2\n", likelihood=PROBIT)
    assert found.values == [1, 0]
    assert [each.reason for each in found.bad] == ["rating 0.5 is not 0 or 1", "rating 2 is not 0 or 1"]
    text = '{"user": 1, "rating": true}\n{"user": 1, "rating": 2}\n'
    found = from_text(tmp_path, text, name="a.jsonl", modes=["user"], likelihood=PROBIT)
    assert (found.values, len(found.bad)) == ([1], 1)


def test_columns_are_found_by_name(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('"b b",x,x,a\n1,2,3,4\n')
    source = source_by_name(str(path))
    assert all_of(read(source, ["a", "b b"])).columns == [[4], [1]]
    with pytest.raises(SourceError, match=r"no column 'c' \(there are: b b, x, x, a\)"):
        list(read(source, ["c"]))
    with pytest.raises(SourceError) as caught:
        list(read(source, ["c"]))
    assert (caught.value.kind, caught.value.value) == ("no header", "c")
    with pytest.raises(SourceError, match="more than one column 'x'"):
        list(read(source, ["x"]))
    with pytest.raises(SourceError, match="named twice"):
        list(read(source, ["a"], "a"))
    headless = source_by_name(str(path), names=["p", "q", "r", "s"])
    assert all_of(read(headless, ["s", "p"])).columns == [["a", 4], ["b b", 1]]


def test_rows_can_be_kept_whole(tmp_path):
    text = "user,note,movie\n1,007,2\n,x,2\n3,é,4\n"
    (tmp_path / "a.csv").write_text(text)
    (chunk,) = read(source_by_name(str(tmp_path / "a.csv")), MODES, keep=True)
    assert chunk.values is None
    assert chunk.records.to_pydict() == {"user": ["1", "3"], "note": ["007", "é"], "movie": ["2", "4"]}
    (tmp_path / "a.jsonl").write_text(
        '{"user": 1, "movie": "a", "x": [1]}\n{"user": 2}\n{"user": "b", "movie": 3}\n'
    )
    (chunk,) = read(source_by_name(str(tmp_path / "a.jsonl")), MODES, keep=True)
    assert chunk.records == [{"user": 1, "movie": "a", "x": [1]}, {"user": "b", "movie": 3}]
    assert [column.tolist() for column in chunk.columns] == [[1, "b"], ["a", 3]]


def test_names_and_formats():
    for name, kind, compression in [
        ("a.csv", "csv", None), ("x/b.TSV.GZ", "tsv", "gzip"), ("a.b.ndjson.zst", "jsonl", "zstd"),
        ("a.pq", "parquet", None), ("-", "csv", None),
    ]:  # fmt: skip
        source = source_by_name(name)
        assert (source.format.name, source.compression) == (kind, compression)
    assert source_by_name("-", "jsonl.gz").format.name == "jsonl"
    for name in ("a.txt", "a.gz", "a", "a.parquet.gz"):
        with pytest.raises(SourceError, match="unknown format"):
            source_by_name(name)
    with pytest.raises(SourceError, match="cannot be parquet"):
        source_by_name("-", "parquet")
    with pytest.raises(SourceError, match="already names"):
        source_by_name("a.jsonl", names=["a"])


def test_what_is_no_source_is_one_error(tmp_path, monkeypatch):
    def fails(name, content: bytes, match, error: type[Exception] = SourceError):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(error, match=match):
            list(read(source_by_name(str(tmp_path / name)), MODES, "rating"))

    whole = gzip.compress(BAD_CSV.encode() * 1000)
    fails("a.csv", b"", "no header")
    fails("a.csv", b"\xff\xfeu\x00", "UTF-16")
    fails("a.csv.gz", whole[: len(whole) // 2], "a.csv.gz: ")
    fails("b.csv.gz", b"user,movie,rating\n", "b.csv.gz: ")
    fails("a.parquet", b"PAR1 not at all", "a.parquet: ")
    fails("empty.parquet", b"", "empty.parquet: ")
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 1000)
    fails("long.csv", b"x" * 3000, "a line of more than")
    with pytest.raises(FileNotFoundError):
        list(read(source_by_name(str(tmp_path / "none.csv")), MODES))
    parquet.write_table(pa.table({"user": [1], "movie": pa.array([1], pa.date32()), "rating": ["1"]}),
                        tmp_path / "d.parquet")  # fmt: skip
    source = source_by_name(str(tmp_path / "d.parquet"))
    with pytest.raises(SourceError, match="date32"):
        list(read(source, MODES))
    with pytest.raises(SourceError, match="not a number"):
        list(read(source, ["user"], "rating"))


@pytest.mark.parametrize("block", [1, 9, 1 << 20])
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_the_last_line_is_recognised(tmp_path, monkeypatch, name, block):
    """A reader that goes on finds it changed, wherever blocks end; what ends the line does not count."""
    monkeypatch.setattr(lines, "BLOCK_BYTES", block)
    row = "1,2,3" if name == "a.csv" else '{"user": 1, "movie": 2, "rating": 3}'
    text = ("user,movie,rating\n" if name == "a.csv" else "") + f"{row}\n\n{row}"
    path, source = tmp_path / name, source_by_name(str(tmp_path / name))

    def rest(text, skip, last):
        path.write_text(text)
        return [n for chunk in read(source, MODES, "rating", skip=skip, last=last) for n in chunk.rows]

    path.write_text(text)
    *_, chunk = read(source, MODES, "rating")
    end = chunk.end
    assert end == text.count("\n") + 1
    for ending in ("", "\n", "\r\n"):
        assert rest(text + ending, end, chunk.last) == []
    assert rest(f"{text}\n{row}\n", end, chunk.last) == [end + 1]
    for changed in (f"{text}5", f"{text}5\n{row}\n", f"{text}5\n"):
        with pytest.raises(SourceError, match=f"line {end}, the last one learned, has changed"):
            rest(changed, end, chunk.last)
        assert rest(changed, end, None) == list(range(end + 1, changed.rstrip().count("\n") + 2))


def test_a_header_alone_is_no_rows(tmp_path):
    for text in ("user,movie,rating", "user,movie,rating\r\n"):
        (tmp_path / "a.csv").write_text(text)
        assert list(read(source_by_name(str(tmp_path / "a.csv")), MODES, "rating")) == []
    (tmp_path / "a.jsonl").write_text("")
    assert list(read(source_by_name(str(tmp_path / "a.jsonl")), MODES)) == []


def test_a_file_is_recognised_by_its_start(tmp_path):
    (tmp_path / "a.csv").write_text("user\n1\n")
    source = source_by_name(str(tmp_path / "a.csv"))
    head = source.head()
    with (tmp_path / "a.csv").open("a") as file:
        file.write("2\n")
    assert source.has_head(head)
    (tmp_path / "a.csv").write_text("user\n")
    assert not source.has_head(head)
    assert not source.has_head(None)
    assert source_by_name("-").has_head(None)
    assert not source_by_name("-").has_head(head)


def test_the_fast_way_and_the_slow_way_agree(tmp_path, monkeypatch):
    """Random fields with quotes, commas, blanks and odd numbers: line by line gives the same rows."""
    rng = random.Random(0)
    parts = ["1", "-3", "07", "a", '"b"', '"c,d"', '"e""f"', 'g"h', "", " ", "1.5", "nan", "é", '"i"j']
    text = "user,movie,rating\n" + "".join(
        ",".join(rng.choices(parts, k=rng.choice([3, 3, 3, 3, 3, 2]))) + rng.choice(["\n", "\n", "\r\n"])
        for _ in range(600)
    )
    slow_only = from_text(tmp_path, text)
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1)  # a line each: nearly all go the fast way
    assert from_text(tmp_path, text) == slow_only
    assert len(slow_only.rows) > 50


def test_reading_takes_constant_memory_and_the_wanted_columns(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "a.csv"
    with path.open("w") as file:
        file.write("user,text,movie,rating\n")
        for _ in range(100):
            file.writelines(
                f"{u},{'x' * 200},{u % 7},{u / 10}\n" for u in rng.integers(1000, size=300).tolist()
            )
    before = pa.total_allocated_bytes()
    most = 0
    for chunk in read(source_by_name(str(path)), MODES, "rating"):
        most = max(most, pa.total_allocated_bytes() - before)
        assert len(chunk.columns) == 2
    assert most < 4 << 20  # the file has 6 MiB


# --- where blocks end changes nothing


def in_blocks(path, size: int, modes=MODES, value: str | None = "rating", **how) -> Chunk | str:
    """What is read in blocks of this size, or the error."""
    before, lines.BLOCK_BYTES = lines.BLOCK_BYTES, size
    try:
        return all_of(read(source_by_name(str(path)), modes, value, **how))._replace(share=None)
    except SourceError as error:
        return str(error)
    finally:
        lines.BLOCK_BYTES = before


CSV_LINES = st.lists(
    st.sampled_from(
        [b"1,m1,2.5", b"x,y,3", b"\xef\xbb\xbf1,m1,2", b'"a","b",1', b'"a', b'b",c,1', b"1,m\r2,m,3",
         b"1,2,3\r", b"1,m1,3\r2,m2,4", b'"m\rn",x,1', b"", b" ", b"1,2", b"1,\xff,3", b'a"b,c"d,4',
         b'"a"b,c,4', b'"a""b",c,4', b'"",b,1', b'" a ",b,1', b'a,"b" ,1', b'"a"x"b",c,1',
         b"a\x00b,c,1", b"\r", b",,"]
    ),
    max_size=12,
)  # fmt: skip
JSON_LINES = st.lists(
    st.sampled_from(
        [b'{"user":1,"movie":"m","rating":2.5}', b'\xef\xbb\xbf{"user":1,"movie":"m","rating":2}', b"",
         b'{"user":1,"movie":"m","rating":1}{"user":2,"movie":"n","rating":3}', b'{"user":3,"movie":"m",',
         b"{}", b'"rating":4}', b'{"user":1,"movie":"m","rating":1}\r{"user":2,"movie":"n","rating":3}', b"7",
         b'{"user":"a","movie":"m","rating":1}', b'{"user":1,"movie":"\xff","rating":1}', b"[1]", b"\r",
         b'{"user":1,"movie":"\\ud800","rating":1}', b'{"user":1,"movie":"m","rating":null} ', b"{",
         b'{"user":1.0,"movie":"m","rating":true}', b'{"user":1,"movie":"}{","rating":1}', b'{"user":1}}']
    ),
    max_size=12,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=200)
@given(
    text=CSV_LINES,
    end=st.sampled_from([b"\n", b"\r\n"]),
    modes=st.sampled_from([["user", "movie"], ["user"]]),
)
def test_where_blocks_of_csv_end_changes_nothing(tmp_path_factory, text, end, modes):
    path = tmp_path_factory.getbasetemp() / "blocks.csv"
    path.write_bytes(end.join([b"user,movie,rating", *text, b""]) + b"1,m1,2")
    one, *others = (in_blocks(path, size, modes) for size in (1, 7, 40, 1 << 20))
    assert others == [one] * 3


@pytest.mark.slow
@settings(max_examples=200)
@given(text=JSON_LINES, end=st.sampled_from([b"\n", b"\r\n"]))
def test_where_blocks_of_json_end_changes_nothing(tmp_path_factory, text, end):
    path = tmp_path_factory.getbasetemp() / "blocks.jsonl"
    path.write_bytes(end.join([*text, b'{"user":1,"movie":"m","rating":3}']))
    one, *others = (in_blocks(path, size) for size in (1, 50, 110, 1 << 20))
    assert others == [one] * 3


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_only_the_first_bytes_of_a_file_are_a_byte_order_mark(tmp_path, size):
    path = tmp_path / "a.csv"
    path.write_text("\ufeffuser,movie,rating\n\ufeff1,m,2\n\ufeff2,m,3\n")
    assert in_blocks(path, size).columns[0] == ["\ufeff1", "\ufeff2"]
    assert in_blocks(path, size, skip=2).columns[0] == ["\ufeff2"]
    path, line = tmp_path / "a.jsonl", '{"user": 1, "movie": 2, "rating": 3}'
    path.write_text(f"\ufeff{line}\n\ufeff{line}\n")
    found = in_blocks(path, size)
    assert (found.rows, [(each.row, each.reason) for each in found.bad]) == ([1], [(2, "not JSON")])


@pytest.mark.parametrize("size", [1 << 12, 1 << 20])
def test_long_fields(tmp_path, size):
    """Python's csv has a limit, which arrow has not; a bad row beside them brings them to Python's."""
    path, long = tmp_path / "a.csv", "x" * 200_000
    path.write_text(f"user,movie,rating,{long}\n{long},m,1,\n1,m,2,{long}\nbad\n3,m,4,\n")
    limit = csv.field_size_limit()
    found = in_blocks(path, size)
    assert (found.rows, found.columns[0]) == ([2, 3, 5], [long, 1, 3])
    assert [(each.row, each.reason) for each in found.bad] == [(4, "1 fields instead of 4")]
    assert csv.field_size_limit() == limit


def test_lines_that_end_with_cr_alone(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"user,movie,rating\r1,m,2\r2,m,3\r")
    assert in_blocks(path, 1 << 20) == f"{path}: lines end with CR only, convert them to LF first"


@pytest.mark.parametrize("size", [1, 16, 32])
def test_a_line_is_too_long_wherever_blocks_end(tmp_path, monkeypatch, size):
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 40)
    path = tmp_path / "a.csv"
    path.write_text("user,movie,rating\n" + "x" * 37 + ",m,1\n")
    assert in_blocks(path, size) == f"{path}: a line of more than 0 MiB: is this a text file?"


def test_bytes_that_are_not_text_matter_only_where_they_are_used(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"user,movie,rating,note\n1,m,2,\xff\n\xff,m,2,\n2,m,3,\xff\n")
    for size in (1, 1 << 20):
        found = in_blocks(path, size)
        assert (found.rows, [each.row for each in found.bad]) == ([2, 4], [3])
