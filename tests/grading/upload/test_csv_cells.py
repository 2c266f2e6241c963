"""Single cells of a CSV file are changed, and every other byte stays."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.catalog.errors import WorkbookError
from helpers.grading.upload import csv_cells

ODD = '\ufeffa,"b ""x"", y",c \r\n\r\n  "no quote"x ,,\n"two\nlines",z\n last,1,2'.replace(
    '  "no quote"x', "  no quote x"
)


def table(tmp_path, data: bytes):
    (tmp_path / "t.csv").write_bytes(data)
    return csv_cells.read(tmp_path / "t.csv")


def test_odd_bytes_stay(tmp_path):
    data = ODD.encode()
    found = table(tmp_path, data)
    assert found.rows == (
        ("a", 'b "x", y', "c "),
        ("",),
        ("  no quote x ", "", ""),
        ("two\nlines", "z"),
        (" last", "1", "2"),
    )
    assert found.filled({}) == data
    assert found.filled({(2, 1): "7"}) == ODD.replace("x ,,", "x ,7,").encode()
    assert found.filled({(4, 2): "9", (0, 1): 'q"'}) == ODD.replace('"b ""x"", y"', '"q"""')[:-1].encode() + b"9"


def test_a_short_row_is_given_the_cells_up_to_it(tmp_path):
    assert table(tmp_path, b"a,b,c\nx\ny,,\n").filled({(1, 2): "5", (2, 2): "6"}) == b"a,b,c\nx,,5\ny,,6\n"


@pytest.mark.parametrize("separator", ",;\t")
def test_separators(tmp_path, separator):
    found = table(tmp_path, separator.join("abc").encode() + b"\n" + separator.join("123").encode())
    assert found.rows == (("a", "b", "c"), ("1", "2", "3"))
    assert found.filled({(1, 1): f"4{separator}5"}).endswith(f'1{separator}"4{separator}5"{separator}3'.encode())


def test_windows_bytes_stay(tmp_path):
    data = "Name;Größe\nJosé;1\n".encode("cp1252")
    assert table(tmp_path, data).filled({(1, 1): "2"}) == data.replace(b"1", b"2")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'a,b\n"x,y\n', "line 2: not a row of cells"),
        (b'a,b\n"x"y,z\n', "line 2: not a row of cells"),
        (b"PK\x03\x04", "is no CSV file"),
        ("a,b\n".encode("utf-16"), "is no CSV file"),
        (b"\x81\x8d\xff,", "neither UTF-8 nor"),
    ],
)
def test_what_is_no_table(tmp_path, data, words):
    with pytest.raises(WorkbookError, match=words):
        table(tmp_path, data)
    with pytest.raises(WorkbookError, match="cannot be read"):
        csv_cells.read(tmp_path / "nowhere.csv")


cells = st.lists(st.lists(st.text('ab,;"\n é=', max_size=4), min_size=2, max_size=4), min_size=1, max_size=5)


@given(cells, st.sampled_from(["\n", "\r\n"]), st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]), st.data())
def test_it_reads_what_csv_writes_and_changes_one_cell(tmp_path_factory, rows, end, quoting, data):
    rows[0] = ["x,"] * 9  # so that the comma is the separator
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=end, quoting=quoting).writerows(rows)
    found = table(tmp_path_factory.mktemp("t"), text.getvalue().encode())
    assert [list(row) for row in found.rows] == rows
    line = data.draw(st.integers(0, len(rows) - 1))
    column = data.draw(st.integers(0, len(rows[line]) - 1))
    changed = found.filled({(line, column): "new"}).decode()
    rows[line][column] = "new"
    assert list(csv.reader(io.StringIO(changed, newline=""))) == rows
