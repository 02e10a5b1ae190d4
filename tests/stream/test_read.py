"""Every form of file that users have is read without options, and what is wrong is said."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from neutronstream.stream import EventLog, LogError, OrderError, read_links, read_log


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Writes a text or bytes to a file and gives its path."""

    def write_file(content: str | bytes, name: str = "log.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file


def rows(log: EventLog) -> list[tuple[Any, Any, int]]:
    """The events with their original ids."""
    src, dst = log.name_of(log.events.src), log.name_of(log.events.dst)
    return list(zip(src, dst, log.events.time.tolist(), strict=True))


PLAIN = [(0, 1, 10), (1, 2, 20), (0, 2, 20)]

FORMS = {
    "header": "src,dst,t\n0,1,10\n1,2,20\n0,2,20\n",
    "header with spaces": "src, dst, t\n0, 1, 10\n1, 2, 20\n0, 2, 20\n",
    "byte order mark": "\ufeffsrc,dst,t\n0,1,10\n1,2,20\n0,2,20\n",
    "semicolons": "source;target;time\n0;1;10\n1;2;20\n0;2;20\n",
    "tabs": "from\tto\ttimestamp\n0\t1\t10\n1\t2\t20\n0\t2\t20\n",
    "bars": "u|v|ts\n0|1|10\n1|2|20\n0|2|20\n",
    "other order and case": "Time,Target,Source\n10,1,0\n20,2,1\n20,2,0\n",
    "NeutronStream": "item.u,item.v,item.t,item.T\n0,1,10,A\n1,2,20,A\n0,2,20,A\n",
    "DGB": ",u,i,ts,label,idx\n0,0,1,10,0,1\n1,1,2,20,0,2\n2,0,2,20,0,3\n",
    "floats": "src,dst,t\n0.0,1.0,10.0\n1.0,2.0,20.0\n0.0,2.0,20.0\n",
    "quotes": '"src","dst","t"\n"0","1","10"\n"1","2","20"\n"0","2","20"\n',
    "quotes and spaces": '"src", "dst", "t"\n"0", "1", "10"\n"1", "2", "20"\n"0", "2", "20"\n',
    "blank lines": "\nsrc,dst,t\n0,1,10\n\n1,2,20\n   \n0,2,20\n\n\n",
    "no newline at the end": "src,dst,t\n0,1,10\n1,2,20\n0,2,20",
    "Windows": "src,dst,t\r\n0,1,10\r\n1,2,20\r\n0,2,20\r\n",
    "old Macintosh": "src,dst,t\r0,1,10\r1,2,20\r0,2,20\r",
    "comments": "% sym\n% 3 3 2\n0 1 10\n1 2 20\n0 2 20\n",
    "comment that names columns": "# src dst time\n0 1 10\n1 2 20\n0 2 20\n",
    "comments between rows": "src,dst,t\n0,1,10\n# a remark\n1,2,20\n0,2,20\n",
    "SNAP": "0 1 10\n1 2 20\n0 2 20\n",
    "runs of blanks": "  0   1\t10\n 1   2  20 \n0\t2\t20\n",
    "Network Repository": "% sym\n0,1,10\n1,2,20\n0,2,20\n",
    "Network Repository with weights": "0 1 1 10\n1 2 1 20\n0 2 1 20\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_every_text_form_gives_the_same_events(write: Any, form: str) -> None:
    log = read_log(write(FORMS[form]))
    assert rows(log) == PLAIN
    assert (log.unit, log.num_nodes, log.was_sorted, log.quarantined) == ("s", 3, True, 0)


def test_compressed_files_and_archives_read_like_plain_ones(write: Any) -> None:
    content = FORMS["header"].encode()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("readme.html", "<p>about</p>")
        file.writestr("inner/log.edges", content)
    packed = {
        "a.csv.gz": gzip.compress(content),
        "a.csv.bz2": bz2.compress(content),
        "a.csv.xz": lzma.compress(content),
        "a.zip": archive.getvalue(),
        "no_suffix": gzip.compress(content),
        "utf16.csv": FORMS["header"].encode("utf-16"),
    }
    for name, data in packed.items():
        assert rows(read_log(write(data, name))) == PLAIN
    assert read_log(write(packed["a.csv.gz"], "uci.csv.gz")).name == "uci"


def test_parquet_arrow_feather_and_tables_in_memory_read_alike(tmp_path: Path) -> None:
    table = pa.table({"src": [0, 1, 0], "dst": [1, 2, 2], "t": [10, 20, 20]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    pyarrow.feather.write_feather(table, tmp_path / "a.feather", compression="uncompressed")
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as w,
    ):
        w.write_table(table)
    with (
        pa.OSFile(str(tmp_path / "b.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as w,
    ):
        w.write_table(table)
    for name in ("a.parquet", "a.feather", "a.arrow", "b.arrow"):
        assert rows(read_log(tmp_path / name)) == PLAIN
    assert rows(read_log(table)) == PLAIN


COMMENTED_OUT = {
    "after another comment": "src,dst,t\n0,1,10\n# note\n1,2,20\n0,2,20\n#5,6,7\n",
    "the only comment": "src,dst,t\n0,1,10\n#5,6,7\n1,2,20\n0,2,20\n",
    "without a header": "0 1 10\n%5 6 7\n1 2 20\n0 2 20\n",
    "prose of as many words": "src,dst,t\n0,1,10\n# so, they, say\n1,2,20\n0,2,20\n",
    "time first": "t,src,dst\n10,0,1\n#9,5,6\n20,1,2\n20,0,2\n",
    "right under the header": "src,dst,t\n#5,6,7\n0,1,10\n1,2,20\n0,2,20\n",
}


@pytest.mark.parametrize("form", COMMENTED_OUT)
def test_a_row_that_is_commented_out_is_no_event(write: Any, form: str) -> None:
    log = read_log(write(COMMENTED_OUT[form]))
    assert rows(log) == PLAIN  # and the ids are numbers still
    assert any("comments between the rows, the first in line" in note for note in log.notes)


def test_a_row_of_texts_is_commented_out_where_the_mark_is_known(write: Any) -> None:
    log = read_log(write("# made by hand\nsrc,dst,t\nann,bob,1\n#bob,eve,2\neve,ann,3\n"))
    assert rows(log) == [("ann", "bob", 1), ("eve", "ann", 3)]
    assert "1 comments between the rows, the first in line 4" in log.notes


def test_ids_that_start_like_a_comment_are_ids(write: Any) -> None:
    lone = read_log(write("src,dst,t\nann,bob,1\n#tea,ann,2\n"))
    assert rows(lone) == [("ann", "bob", 1), ("#tea", "ann", 2)]
    both = read_log(write("# tags\nsrc,dst,t\nann,#tea,1\n#tea,#milk,2\n"))
    assert rows(both) == [("ann", "#tea", 1), ("#tea", "#milk", 2)]
    every = read_log(write("# tags\nsrc,dst,t\n#tea,ann,1\n#milk,bob,2\n"))
    assert rows(every) == [("#tea", "ann", 1), ("#milk", "bob", 2)]
    other = read_log(write("% tags\nsrc,dst,t\nann,bob,1\n#tea,ann,2\n"))
    assert rows(other) == [("ann", "bob", 1), ("#tea", "ann", 2)]


MATRIX = "%%MatrixMarket matrix coordinate integer general\n% made by hand\n\n3 3 3\n"


def test_the_size_of_a_matrix_market_file_is_no_event(write: Any, tmp_path: Path) -> None:
    body = "1 2 100000010\n2 3 100000020\n1 3 100000020\n"
    log = read_log(write(MATRIX + body, "a.mtx"))
    assert rows(log) == [(1, 2, 100000010), (2, 3, 100000020), (1, 3, 100000020)]
    with pytest.raises(LogError, match=r"line 6, column 2: a number, .* got 'x'"):
        read_log(write(MATRIX + body.replace("100000020", "x", 1), "a.mtx"))
    pattern = MATRIX.replace("integer", "pattern")
    src, dst = read_links(write(pattern + "1 2\n2 3\n% no entry\n1 3\n", "a.mtx"))
    assert (src.to_pylist(), dst.to_pylist()) == ([1, 2, 1], [2, 3, 3])
    assert len(read_log(write(MATRIX + body, "a.mtx"), limit=1)) == 1


def test_a_matrix_market_file_that_is_cut_short_or_no_list_is_refused(write: Any) -> None:
    with pytest.raises(LogError, match=r"a.mtx, line 4: it tells of 3 entries, the file has 1; is"):
        read_log(write(MATRIX + "1 2 5\n", "a.mtx"))
    with pytest.raises(LogError, match=r"a.mtx, line 4: how many rows, columns .* got '3 3'"):
        read_log(write(MATRIX.replace("3 3 3", "3 3") + "1 2 5\n", "a.mtx"))
    with pytest.raises(LogError, match=r"a.mtx, line 1: .* must list coordinates: got '%%Matrix"):
        read_log(write("%%MatrixMarket matrix array real general\n2 2\n1\n2\n3\n4\n", "a.mtx"))


# ---- kinds, weights, labels, features ------------------------------------------------------------


def test_neutronstream_files_have_dates_and_kinds(write: Any) -> None:
    log = read_log(
        write(
            "item.u,item.v,item.t,item.T\n"
            "42,50,2008-09-11 03:16:14,Communication\n42,21,2008-09-11 03:16:15,AE\n"
        )
    )
    assert rows(log) == [(42, 50, 1221102974), (42, 21, 1221102975)]
    assert log.kinds == ("Communication", "AE")
    assert log.events.kind.tolist() == [0, 1]
    assert "times without an offset are taken as UTC" in log.notes


def test_kinds_are_numbered_by_first_appearance_in_time(write: Any) -> None:
    log = read_log(write("src,dst,t,type\na,b,9,late\na,b,1,early\n"))
    assert log.kinds == ("early", "late")
    assert log.events.kind.tolist() == [0, 1]
    assert read_log(write("src,dst,t,rel\na,b,1,7\nb,c,2,3\n"), kind="rel").kinds == ("7", "3")


def test_up_to_256_kinds_are_read_and_more_are_refused(write: Any) -> None:
    def text(n: int) -> str:
        return "src,dst,t,kind\n" + "".join(f"0,1,{i},k{i}\n" for i in range(n))

    log = read_log(write(text(256)))
    assert len(log.kinds) == 256
    assert log.events.kind[-1] == 255
    with pytest.raises(LogError, match=r"column `kind`: at most 256 kinds .* has 257"):
        read_log(write(text(257)))
    assert read_log(write(text(257)), kind="").kinds == ("event",)


def test_jodie_files_have_features_and_keep_users_and_items_apart(write: Any) -> None:
    log = read_log(
        write(
            "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n"
            "0,0,0.0,0,0.5,-1\n2,1,36.0,1,0.25,2\n"
        )
    )
    assert rows(log) == [(0, 3, 0), (2, 4, 36)]  # items after the largest user, 2
    assert log.num_nodes == 4
    assert log.events.label is not None and log.events.label.tolist() == [0, 1]
    assert log.events.features is not None and log.events.features.dtype == np.float32
    assert log.events.features.tolist() == [[0.5, -1.0], [0.25, 2.0]]
    assert "users and items are apart: item i has the id i + 3" in log.notes


def test_names_of_users_and_items_are_kept_apart_only_where_they_clash(write: Any) -> None:
    apart = read_log(write("user,item,t\nann,bob,1\nbob,tea,2\n"))
    assert rows(apart) == [("ann", "item:bob", 1), ("bob", "item:tea", 2)]
    disjoint = read_log(write("user,item,t\nann,tea,1\nbob,tea,2\n"))
    assert rows(disjoint) == [("ann", "tea", 1), ("bob", "tea", 2)]


def test_a_jodie_header_without_features_or_rows(write: Any) -> None:
    header = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n"
    assert rows(read_log(write(header + "0,0,0,0\n"))) == [(0, 1, 0)]
    empty = read_log(write(header))
    assert (len(empty), empty.num_nodes) == (0, 0)
    assert "the source has no events" in empty.notes


def test_weights_and_labels(write: Any) -> None:
    log = read_log(write("src,dst,t,rating,label\n0,1,1,-2.5,1\n1,0,2,1e3,0.0\n"))
    assert log.events.weight is not None and log.events.weight.tolist() == [-2.5, 1000.0]
    assert log.events.label is not None and log.events.label.tolist() == [1, 0]


def test_a_column_that_only_looks_like_a_weight_or_label_is_left_out_with_a_note(
    write: Any,
) -> None:
    log = read_log(write("src,dst,t,label,value,extra\n0,1,1,spam,x,1\n1,2,2,ham,y,2\n"))
    assert log.events.label is None and log.events.weight is None
    assert "column `label` holds no labels and is not used" in log.notes
    assert "column `value` holds no weights and is not used" in log.notes
    assert "columns not used: extra" in log.notes
    with pytest.raises(LogError, match="column `label`: a whole number is expected, got 'spam'"):
        read_log(write("src,dst,t,label\n0,1,1,spam\n"), label="label")


# ---- columns -------------------------------------------------------------------------------------


def test_options_name_columns_where_the_header_does_not(write: Any) -> None:
    path = write("a,b,c,d\n1,2,3,4\n5,6,7,8\n")
    assert rows(read_log(path, src="b", dst="d", time="a")) == [(2, 4, 1), (6, 8, 5)]
    assert rows(read_log(path, src=1, dst=3, time=0)) == [(2, 4, 1), (6, 8, 5)]
    with pytest.raises(LogError, match=r"no column is known as `src` among 'a', 'b'.*src=COLUMN"):
        read_log(path)
    with pytest.raises(LogError, match=r"`time` names no column: got 'when'.*a, b, c, d"):
        read_log(path, src="a", dst="b", time="when")
    with pytest.raises(LogError, match="names a column that another option names too"):
        read_log(path, src="a", dst="a", time="c")


def test_an_option_wins_over_a_known_name(write: Any) -> None:
    path = write("src,dst,t,sent\n0,1,5,9\n")
    assert rows(read_log(path, time="sent")) == [(0, 1, 9)]


HEADERLESS = {
    "epoch last": ("1 2 1082040961\n3 4 1082155839\n", [(1, 2, 1082040961), (3, 4, 1082155839)]),
    "rating, epoch": ("6,2,4,1289241911.5\n6,5,-2,1289241941\n", None),
    "epoch, duration": ("5,9,1095984059,11\n7,3,1095984070,0\n", None),
    "time, i, j": ("20 42 37\n40 42 37\n40 36 41\n400 9 8\n", None),
    "epoch, i, j, classes": ("1385982020 454 640 MP MP\n1385982040 1 39 2BIO3 2BIO3\n", None),
    "LAD": ("2006,ann,18,6\n2006,bob,ann,2\n2007,eve,ann,9\n", None),
    "texts and a number": ("ann,bob,9\nbob,eve,1\n", None),
    "texts and a date": ("ann,bob,2008-09-11 03:16:14\n", None),
    "one row": ("0 1 5\n", [(0, 1, 5)]),
    "equal times": ("0 1 0\n1 2 0\n2 3 0\n", [(0, 1, 0), (1, 2, 0), (2, 3, 0)]),
    "not sorted epoch": ("1 2 1 1133441700\n9 4 1 1133379300\n", None),
    "date and clock between blanks": ("0 1 2008-09-11 03:16:14\n2 1 2008-09-11 03:16:15\n", None),
}
TOLD = {
    "rating, epoch": [(6, 2, 1289241911500), (6, 5, 1289241941000)],
    "epoch, duration": [(5, 9, 1095984059), (7, 3, 1095984070)],
    "time, i, j": [(42, 37, 20), (42, 37, 40), (36, 41, 40), (9, 8, 400)],
    "epoch, i, j, classes": [(454, 640, 1385982020), (1, 39, 1385982040)],
    "LAD": [("ann", "18", 2006), ("bob", "ann", 2006), ("eve", "ann", 2007)],
    "texts and a number": [("bob", "eve", 1), ("ann", "bob", 9)],
    "texts and a date": [("ann", "bob", 1221102974)],
    "not sorted epoch": [(9, 4, 1133379300), (1, 2, 1133441700)],
    "date and clock between blanks": [(0, 1, 1221102974), (2, 1, 1221102975)],
}


@pytest.mark.parametrize("form", HEADERLESS)
def test_without_a_header_the_time_is_found_by_what_columns_hold(write: Any, form: str) -> None:
    content, expected = HEADERLESS[form]
    log = read_log(write(content))
    assert rows(log) == (expected or TOLD[form])
    assert "no header: columns from 0 are taken as" in log.notes[0]


AMBIGUOUS = {
    "times fall": "".join(f"{i} {i + 1} {9 - i}\n" for i in range(10)),
    "sorted by source": "0 5 9\n1 3 8\n2 4 3\n",
    "two that rise": "3 0 1 10\n1 2 2 20\n0 2 3 30\n",
    "first and last rise": "1 9 3\n2 7 4\n30 5 5\n",
}


@pytest.mark.parametrize("form", AMBIGUOUS)
def test_without_a_header_an_unclear_time_is_an_error_that_says_what_to_do(
    write: Any, form: str
) -> None:
    path = write(AMBIGUOUS[form])
    with pytest.raises(LogError, match=r"which of the \d columns is the time; name them .*src=0"):
        read_log(path)
    named = read_log(path, src=0, dst=1, time=2)
    assert len(named) == len(AMBIGUOUS[form].splitlines())


def test_ids_that_look_like_names_of_columns_are_no_header(write: Any) -> None:
    assert rows(read_log(write("u v 1\nv w 2\n"))) == [("u", "v", 1), ("v", "w", 2)]
    log = read_log(write("src,dst,t,0,1\n5,6,7,8,9\n"))  # columns named by numbers
    assert rows(log) == [(5, 6, 7)]


def test_a_position_beyond_the_columns_is_named(write: Any) -> None:
    with pytest.raises(LogError, match="`time` names no column: got 7, the file has 3 columns"):
        read_log(write("0 1 5\n"), time=7)
    with pytest.raises(LogError, match="no header; give a position from 0"):
        read_log(write("0 1 5\n"), time="ts")


# ---- order ---------------------------------------------------------------------------------------


def test_the_sort_is_stable_for_many_equal_times(write: Any) -> None:
    lines = ["src,dst,t", "0,1,1", *(f"{i},{i + 1},0" for i in range(5000))]
    log = read_log(write("\n".join(lines)))
    assert len(log) == 5001
    assert rows(log)[:5000] == [(i, i + 1, 0) for i in range(5000)]
    assert rows(log)[-1] == (0, 1, 1)
    assert not log.was_sorted
    assert any("sorted (stable): line 3 has time 0 after 1" in note for note in log.notes)


def test_falling_times_are_sorted_with_a_note_or_refused(write: Any) -> None:
    path = write("src,dst,t\n" + "".join(f"{i},{i + 1},{9 - i}\n" for i in range(10)))
    log = read_log(path)
    assert log.events.time.tolist() == list(range(10))
    assert log.name_of([0, 1]) == [9, 10]  # ids are dense in order of time, too
    with pytest.raises(OrderError, match=r"log.csv is not in order of time: line 3 has time 8 aft"):
        read_log(path, order="error")
    with pytest.raises(ValueError, match='`order` must be "sort" or "error"'):
        read_log(path, order="none")  # type: ignore[arg-type]


def test_every_column_moves_with_its_event_when_sorted(write: Any) -> None:
    log = read_log(write("src,dst,t,kind,weight,label,f0\n1,2,9,a,0.9,9,9\n3,4,1,b,0.1,1,1\n"))
    events = log.events
    assert rows(log) == [(3, 4, 1), (1, 2, 9)]
    assert [log.kinds[k] for k in events.kind] == ["b", "a"]
    assert events.weight is not None and events.weight.tolist() == [0.1, 0.9]
    assert events.label is not None and events.label.tolist() == [1, 9]
    assert events.features is not None and events.features.tolist() == [[1.0], [9.0]]


# ---- ids -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "names"),
    [
        (["5", "7", "1000000000000"], [5, 7, 10**12]),
        (["-3", "0", "9223372036854775807"], [-3, 0, 2**63 - 1]),
        (["alice", "bob", "Zoë"], ["alice", "bob", "Zoë"]),
        (["5.0", "7", "1e3"], [5, 7, 1000]),
        (["007", "7", "8"], ["007", "7", "8"]),
        (["5", "x", "5.0"], ["5", "x", "5.0"]),
        (["0x10", "16", "17"], ["0x10", "16", "17"]),
        (["99999999999999999999", "1", "2"], ["99999999999999999999", "1", "2"]),
        (["1.5", "2", "3"], ["1.5", "2", "3"]),
        (["NA", "null", "None"], ["NA", "null", "None"]),
        (['"a,b"', '"c ""d"""', "e f"], ["a,b", 'c "d"', "e f"]),
    ],
)
def test_ids_of_any_kind_are_mapped_densely_and_given_back(
    write: Any, ids: list[str], names: list[Any]
) -> None:
    a, b, c = ids
    log = read_log(write(f"src,dst,t\n{a},{b},1\n{b},{c},2\n"))
    assert log.num_nodes == 3
    assert log.name_of([0, 1, 2]) == names
    assert log.events.src.tolist() == [0, 1] and log.events.dst.tolist() == [1, 2]


def test_ids_of_typed_tables(tmp_path: Path) -> None:
    def names(src: pa.Array, dst: pa.Array) -> list[Any]:
        return read_log(pa.table({"src": src, "dst": dst, "t": [1]})).name_of([0, 1])

    assert names(pa.array([5.0]), pa.array([7])) == [5, 7]
    assert names(pa.array([2**63 + 1], pa.uint64()), pa.array([7])) == ["9223372036854775809", "7"]
    assert names(pa.array(["a"]).dictionary_encode(), pa.array([7], pa.int8())) == ["a", "7"]
    assert names(pa.array(["a"], pa.large_string()), pa.array(["b"])) == ["a", "b"]


def test_self_loops_are_events(write: Any) -> None:
    log = read_log(write("src,dst,t\n3,3,1\n3,4,2\n"))
    assert log.num_nodes == 2
    assert log.events.src.tolist() == [0, 0] and log.events.dst.tolist() == [0, 1]


# ---- what is wrong -------------------------------------------------------------------------------

BAD_ROWS = {
    "no time": ("src,dst,t\n0,1,5\n0,1,\n", r"line 3, column `t`: a number, .*got nothing"),
    "text time": ("src,dst,t\n0,1,5\n\n0,1,soon\n", r"line 4, column `t`: .*, got 'soon'"),
    "nan": ("src,dst,t\n0,1,5\n0,1,nan\n", r"line 3, column `t`: .* got 'nan'"),
    "inf": ("src,dst,t\n0,1,5\n0,1,-inf\n", r"line 3, column `t`: .* got '-inf'"),
    "float overflow": ("src,dst,t\n0,1,5\n0,1,-1e300\n", r"line 3, column `t`: .* got '-1e300'"),
    "int overflow": (f"src,dst,t\n0,1,5\n0,1,-{10**30}\n", r"line 3, column `t`: .* got '-10"),
    "no source": ("src,dst,t\n,1,5\n", r"line 2, column `src`: an id is expected, got nothing"),
    "nan id": ("src,dst,t\n1,nan,5\n2,3,5\n", r"line 2, column `dst`: an id is .* got 'nan'"),
    "no kind": ("src,dst,t,kind\n0,1,5,\n", r"line 2, column `kind`: a kind is .* nothing"),
    "weight": ("src,dst,t,w\n0,1,5,1\n0,1,5,inf\n", r"line 3, column `w`: a finite .* got 'inf'"),
    "label": ("src,dst,t,label\n0,1,5,1\n0,1,5,1.5\n", r"line 3, column `label`: a whole number"),
    "feature": ("src,dst,t,f0\n0,1,5,1\n0,1,5,abc\n", r"line 3, column `f0`: a finite .* 'abc'"),
    "no feature": ("src,dst,t,f0\n0,1,5,1\n0,1,5,\n", r"line 3, column `f0`: a finite .* nothing"),
    "too few": ("# made\nsrc,dst,t\n0,1,5\n0,1\n", r"line 4, 3 fields are expected, got 2"),
    "too many": ("src,dst,t\n0,1,5\n0,1,5,6\n0,1,7\n", r"line 3, 3 fields are expected, got 4"),
    "open quote": ('src,dst,t\n0,1,5\n"a,1,5\n0,1,7\n', r"line 3, a quote is not closed"),
    "date": ("src,dst,t\n0,1,2008-01-02\n0,1,2008-13-02\n", r"line 3, column `t`: .* '2008-13-02'"),
    "no header": (
        "% c\n0 1 108204096\n0 1 x\n0 1 108204097\n",
        r"line 3, column 2: a number, .* got 'x'",
    ),
    "comment": ("src,dst,t\n# c\n0,1,5\n0,1,x\n", r"line 4, column `t`: .* got 'x'"),
}


@pytest.mark.parametrize("fault", BAD_ROWS)
def test_a_bad_row_is_an_error_that_names_line_column_and_value(write: Any, fault: str) -> None:
    content, message = BAD_ROWS[fault]
    with pytest.raises(LogError, match=r"^log.csv, " + message + ".*quarantine=PATH$"):
        read_log(write(content))


@pytest.mark.parametrize("fault", BAD_ROWS)
def test_a_bad_row_is_put_aside_and_counted_if_asked(
    write: Any, tmp_path: Path, fault: str
) -> None:
    content, _ = BAD_ROWS[fault]
    aside = tmp_path / "aside.csv"
    log = read_log(write(content), quarantine=aside)
    header = 0 if fault == "no header" else 1
    lines = [row for row in content.splitlines() if row and row[0] not in "%#"]
    assert log.quarantined == 1
    assert len(log) + log.quarantined == len(lines) - header
    written = aside.read_text().splitlines()
    assert written[0] == "line,reason,text" and len(written) == 2


def test_the_quarantine_keeps_lines_reasons_and_texts(write: Any, tmp_path: Path) -> None:
    content = "src,dst,t\na,b,1\n\na,b\n,b,2\na,b,x\nb,c,9\n"
    log = read_log(write(content), quarantine=tmp_path / "q.csv")
    assert rows(log) == [("a", "b", 1), ("b", "c", 9)]
    assert log.quarantined == 3
    assert (tmp_path / "q.csv").read_text() == (
        "line,reason,text\n"
        '4,"3 fields are expected, got 2","a,b"\n'
        '5,"column `src`: an id is expected, got nothing",",b,2"\n'
        "6,\"column `t`: a number, or a date like 2008-09-11 03:16:14, is expected, got 'x'\","
        '"a,b,x"\n'
    )
    assert any("3 rows were put aside" in note for note in log.notes)


def test_one_bad_id_does_not_turn_numbers_into_texts(write: Any, tmp_path: Path) -> None:
    log = read_log(write("src,dst,t\n1,2,1\nx,2,soon\n"), quarantine=tmp_path / "q.csv")
    assert log.nodes.to_pylist() == [1, 2]


def test_a_quarantine_without_bad_rows_is_a_header(write: Any, tmp_path: Path) -> None:
    assert read_log(write(FORMS["header"]), quarantine=tmp_path / "q.csv").quarantined == 0
    assert (tmp_path / "q.csv").read_text() == "line,reason,text\n"
    path = write(FORMS["header"])
    with pytest.raises(ValueError, match="`quarantine` must not be the source itself"):
        read_log(path, quarantine=path)
    with pytest.raises(LogError, match="the quarantine cannot be written"):
        read_log(path, quarantine=tmp_path / "none" / "q.csv")


def test_a_row_is_a_line_so_a_quoted_newline_is_refused_or_put_aside(
    write: Any, tmp_path: Path
) -> None:
    path = write('src,dst,t\n"a\nb",c,1\nd,e,2\n')
    with pytest.raises(LogError, match=r"line 2, .*\(a quoted field holds no newline\); repair"):
        read_log(path)
    log = read_log(path, quarantine=tmp_path / "q.csv")
    assert (rows(log), log.quarantined) == ([("d", "e", 2)], 2)  # a line each


def test_the_options_that_help_are_told_in_the_spelling_that_is_asked_for(write: Any) -> None:
    def refusal(content: str) -> LogError:
        with pytest.raises(LogError) as caught:
            read_log(write(content))
        return caught.value

    bad = refusal("src,dst,t\n0,1,t=5\n")
    assert str(bad).endswith("got 't=5'; repair it, or put such rows aside: quarantine=PATH")
    assert bad.spelled("--{} {}").endswith(
        "got 't=5'; repair it, or put such rows aside: --quarantine PATH"
    )
    unknown = refusal("a,b,c\n0,1,5\n")
    assert str(unknown).endswith("name it with src=COLUMN")
    assert unknown.spelled("--{} {}").endswith("name it with --src COLUMN")
    unclear = refusal("0 5 9\n1 3 8\n2 4 3\n")
    assert str(unclear).endswith("for example src=0, dst=1, time=2")
    assert unclear.spelled("--{} {}").endswith("for example --src 0, --dst 1, --time 2")
    kinds = refusal("src,dst,t,kind\n" + "".join(f"0,1,{i},k{i}\n" for i in range(257)))
    assert str(kinds).endswith('name another column, or none with kind=""')
    assert kinds.spelled("--{} {}").endswith('or none with --kind ""')


def test_bad_rows_of_a_table_are_named_by_row(tmp_path: Path) -> None:
    table = pa.table({"src": [0, 1], "dst": [1, None], "t": [1.0, float("nan")]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(LogError, match=r"a.parquet, row 2, column `dst`: an id is .* got nothing"):
        read_log(tmp_path / "a.parquet")
    log = read_log(tmp_path / "a.parquet", quarantine=tmp_path / "q.csv")
    assert (len(log), log.quarantined) == (1, 1)
    assert '2,"column `dst`: an id' in (tmp_path / "q.csv").read_text()


BAD_FILES: dict[str, tuple[bytes, str]] = {
    "empty.csv": (b"", "empty.csv: the file has no rows"),
    "blank.csv": (b"\n \n", "blank.csv: the file has no rows"),
    "comments.csv": (b"% nothing\n", "comments.csv: the file has no rows"),
    "junk.bin": (bytes(range(256)) * 4, "junk.bin: the file is not text"),
    "latin.csv": ("src,dst,t\na,b,1\nZoë,b,2\n".encode("latin-1"), "line 3: the text is not UTF-8"),
    "cut.csv.gz": (gzip.compress(b"src,dst,t\n" + b"0,1,5\n" * 99)[:-12], "cut short or damaged"),
    "bad.csv.gz": (b"\x1f\x8bnot gzip at all", "cut short or damaged"),
    "bad.zip": (b"PK\x03\x04 no archive", "cut short or damaged"),
    "bad.parquet": (b"PAR1 and no more", "Arrow or Parquet data are damaged"),
    "bad.arrow": (b"ARROW1 and no more", "Arrow or Parquet data are damaged"),
    "two.csv": (b"src,dst\n0,1\n", r"at least 3 fields \(source, target, time\) are expected"),
    "prose.txt": (b"Dear all,\nhello.\n", r"at least 3 fields"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_is_no_log_is_one_clear_error(write: Any, name: str) -> None:
    content, message = BAD_FILES[name]
    with pytest.raises(LogError, match=message):
        read_log(write(content, name))


def test_missing_files_directories_and_archives_of_many(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="there is no such file"):
        read_log(tmp_path / "none.csv")
    with pytest.raises(LogError, match="this is a directory"):
        read_log(tmp_path)
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as file:
        file.writestr("a.csv", "0,1,5")
        file.writestr("b.csv", "0,1,5")
    with pytest.raises(LogError, match=r"one data file .* holds a.csv, b.csv; unpack"):
        read_log(tmp_path / "two.zip")
    with pytest.raises(TypeError, match="`source` must be a path or a table: got int"):
        read_log(3)  # type: ignore[arg-type]


def test_a_header_without_rows_is_an_empty_log(write: Any) -> None:
    log = read_log(write("src,dst,t\n"))
    assert (len(log), log.num_nodes, log.unit) == (0, 0, "s")
    assert "the source has no events" in log.notes


def test_limit_reads_the_first_rows_only(write: Any) -> None:
    path = write("src,dst,t\n0,1,1\n\n# c\n1,2,2\n5,6,oops\n")
    assert rows(read_log(path, limit=2)) == [(0, 1, 1), (1, 2, 2)]
    assert len(read_log(path, limit=0)) == 0
    assert len(read_log(write("0 1 1\n\n1 2 2\n5 6 x\n", "b.txt"), limit=2)) == 2
    table = pa.table({"src": [0, 1], "dst": [1, 2], "t": [1, 2]})
    assert rows(read_log(table, limit=1)) == [(0, 1, 1)]
    with pytest.raises(ValueError, match="`limit` must not be negative: got -1"):
        read_log(path, limit=-1)


@pytest.mark.parametrize("limit", [10**20, 2**63, 2**63 - 1])
def test_a_limit_beyond_any_counter_reads_all(write: Any, tmp_path: Path, limit: int) -> None:
    table = pa.table({"src": [0, 1, 0], "dst": [1, 2, 2], "t": [10, 20, 20]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    comments = write(FORMS["comments between rows"], "b.csv")
    for source in (write(FORMS["header"]), comments, tmp_path / "a.parquet", table):
        assert rows(read_log(source, limit=limit)) == PLAIN


@pytest.mark.parametrize("content", ["0 1 5\n", "src,dst,t\n0,1,2008-09-11\n", "src,dst,t\n"])
def test_an_unknown_unit_is_refused_whatever_the_times_are(write: Any, content: str) -> None:
    expected = "`unit` must be one of s, ms, us, ns, step: got 'fortnight'"
    with pytest.raises(ValueError, match=expected):
        read_log(write(content), unit="fortnight")  # type: ignore[arg-type]


# ---- links before the first event ----------------------------------------------------------------


def test_initial_links_come_first_and_share_the_ids(write: Any) -> None:
    graph0 = write("#4,#2\n7,8\n8,9\n", "graph0.txt")
    events = write("src,dst,t\n9,5,100\n7,5,200\n")
    log = read_log(events, initial=graph0)
    assert log.nodes.to_pylist() == [7, 8, 9, 5]
    assert log.initial is not None
    assert log.initial.src.tolist() == [0, 1] and log.initial.dst.tolist() == [1, 2]
    assert log.initial.time.tolist() == [100, 100]
    assert rows(log) == [(9, 5, 100), (7, 5, 200)]
    assert log.nodes_before(0) == 3
    same = read_log(events, initial=([7, 8], [8, 9]))
    assert same.checksum == log.checksum
    assert read_log(events, initial=(["x"], ["7"])).nodes.to_pylist() == ["x", "7", "9", "5"]


def test_links_are_read_from_every_form(write: Any, tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pa.table({"src": [1], "dst": [2]}), tmp_path / "l.parquet")
    paths = [
        write("#3,#1\n1,2\n", "a.txt"),
        write("1 2\n", "b.txt"),
        write("src,dst\n1,2\n", "c.csv"),
        write("source;target;since\n1;2;9\n", "d.csv"),
        tmp_path / "l.parquet",
    ]
    for path in paths:
        src, dst = read_links(path)
        assert (src.to_pylist(), dst.to_pylist()) == ([1], [2])
    src, dst = read_links(write("#1899,#0\n", "empty.txt"))
    assert (len(src), len(dst)) == (0, 0)
    log = read_log(write(FORMS["header"]), initial=(src, dst))
    assert log.initial is not None and len(log.initial) == 0 and rows(log) == PLAIN


def test_links_that_are_cut_short_or_wrong_are_refused(write: Any) -> None:
    with pytest.raises(LogError, match=r"tells of 2 links, the file has 1; is it cut short\?"):
        read_links(write("#3,#2\n1,2\n", "a.txt"))
    with pytest.raises(LogError, match="line 2, column 1: an id is expected, got nothing"):
        read_links(write("1,2\n1,\n", "a.txt"))
    with pytest.raises(LogError, match="line 3, 2 fields are expected, got 3"):
        read_links(write("1,2\n1,3\n1,2,3\n", "a.txt"))
    with pytest.raises(ValueError, match="as many sources as targets: got 1 and 2"):
        read_log(write(FORMS["header"]), initial=([1], [2, 3]))
