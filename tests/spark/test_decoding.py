"""Protects decoding in `kcli to-parquet`: what does not fit is null as a whole and in OUT.undecoded with its bytes and why;
the inferred schema is printed, saved and given again; fields become columns by one rule."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructType

from kcli.commands.output import EXIT_CANNOT_RUN, EXIT_OK
from kcli.spark import parquet_export
from kcli.spark.decoding import Decoding, json_reason, utf8_reason
from kcli.spark.json_schema import unique_names
from kcli.spark.parquet_export import ExportOptions, check_export
from kcli.spark.spark_errors import ExportError
from tests.log_builder import PartitionBuilder
from tests.spark.to_parquet_run import Run

TYPES = "id bigint, i int, s smallint, f float, d double, n decimal(5,1), b boolean, t timestamp, x binary, name string"
PARTS = "a array<int>, o struct<p: int>, m map<string,double>, list array<struct<q: float>>"
SCHEMA = f"{TYPES}, {PARTS}"
# What fits -> what it becomes.
FITS: dict[bytes, dict[str, Any] | None] = {
    b'{"id": 1, "name": "n"}': {"id": 1, "name": "n"},
    b' {"id": -9223372036854775808}\r\n': {"id": -(2**63)},
    b"{}": {},
    b"null": None,
    b'{"id": null, "other": [1, {"a": "b"}]}': {},
    b'{"id": 1, "id": 2}': {"id": 2},
    b'{"ID": 5}': {},
    b'{"name": 5}': {"name": "5"},
    b'{"name": {"a": [1]}}': {"name": '{"a":[1]}'},
    b'{"d": 1e308, "f": 3.0e38}': {"d": 1e308, "f": pytest.approx(3.0e38)},
    b'{"a": [1, null], "o": {"p": 1}, "m": {"k": 1.5}}': {"a": [1, None], "o": {"p": 1}, "m": [("k", 1.5)]},
    '{"name": "grün \\ud83d\\ude00"}'.encode(): {"name": "grün \N{GRINNING FACE}"},
    b'{"other": ' + b"[" * 62 + b"]" * 62 + b"}": {},
    b'{"name": 12345678901234567890.123456789, "d": 1.50}': {"name": "12345678901234567890.123456789", "d": 1.5},
    b'{"name": {"q": [1, 2.50, "1.50\\"", 1e400]}, "list": [{"q": 0.5}]}': {
        "name": '{"q":[1,2.50,"1.50\\"",1e400]}',
        "list": [{"q": 0.5}],
    },
    b'{"name": "1.50", "m": {"k": 1.5}}': {"name": "1.50", "m": [("k", 1.5)]},
    b'{"n": 12.50}': {"n": Decimal("12.5")},
    b'{"t": "2023-11-14T23:13:20.5+01:00"}': {"t": datetime(2023, 11, 14, 22, 13, 20, 500_000, UTC)},
    b'{"t": 1}': {"t": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)},
}
# Numbers in fields of type string, by a schema without decimals.
TEXTS = {
    b'{"s": 1.50}': "1.50",
    b'{"s": 1E2}': "1E2",
    b'{"s": 100}': "100",
    b'{"s": "1.50"}': "1.50",
    b'{"s": [{"a": 1.50, "b": "c"}]}': '[{"a":1.50,"b":"c"}]',
    b'{"s": "text", "d": 1.5}': "text",
}
# What does not -> how its reason begins.
MISFITS: dict[bytes, str] = {
    b"": "empty",
    b" \n": "empty",
    b"not json": "not JSON: expecting value at character 0",
    b'{"id": 1': "not JSON: expecting ',' delimiter at character 8",
    b'{"id": 1} {"id": 2}': "not JSON: extra data at character 10",
    b'{"id": 1}\n{"id": 2}': "not JSON: extra data",
    b'{"id": 1}}': "not JSON: extra data",
    b'{"id": 1}, "x": {"id": 2}': "not JSON: extra data",
    b'{"id": 1}}, "x": {"y": {"id": 2}': "not JSON: extra data",
    b'{"n": "12"}': "n is a string, not decimal(5,1)",
    b'{"t": "12:00"}': 't is "12:00", not timestamp',
    b'{"t": "2023-1-5T99"}': 't is "2023-1-5T99", not timestamp',
    b'{"id": 1}\0': "not JSON: extra data",
    b"{'id': 1}": "not JSON: expecting property name",
    b'{"d": NaN}': "not JSON: NaN is not a JSON number",
    b'{"d": -Infinity}': "not JSON: -Infinity is not",
    b'{"id": 01}': "not JSON: expecting ',' delimiter",
    b'{"name": "a\nb"}': "not JSON: invalid control character",
    b'{"name": "\xff\xfe"}': "not UTF-8: byte 10 (0xff)",
    '{"id": 1}'.encode("utf-16"): "not UTF-8: byte 0 (0xff)",
    b'\xef\xbb\xbf{"id": 1}': "begins with a byte order mark",
    b'{"other": ' + b"[" * 64 + b"]" * 64 + b"}": "nested deeper than 64 levels",
    b'{"other": ' + b"[" * 5000 + b"]" * 5000 + b"}": "nested deeper than 64 levels",
    b'{"other": ' + b"9" * 2000 + b"}": "does not fit the schema",
    b"5": "the value is a number, not an object",
    b'"x"': "the value is a string, not an object",
    b'[{"id": 1}]': "the value is an array, not an object",
    b'{"id": "5", "name": "kept by Spark alone"}': "id is a string, not bigint",
    b'{"id": 1.5}': "id is 1.5, a number with a fraction or an exponent, not bigint",
    b'{"id": 9223372036854775808}': "id is 9223372036854775808, out of the range of bigint",
    b'{"i": 3000000000}': "i is 3000000000, out of the range of int",
    b'{"s": -32769}': "s is -32769, out of the range of smallint",
    b'{"f": 1e39}': "f is out of the range of float",
    b'{"d": 1e309}': "d is out of the range of double",
    b'{"d": ' + b"9" * 400 + b"}": "d is out of the range of double",
    b'{"d": "NaN"}': "d is a string, not double",
    b'{"n": 12345.0}': "n is 12345.0, out of the range of decimal(5,1)",
    b'{"b": "true"}': "b is a string, not boolean",
    b'{"b": 1}': "b is a number, not boolean",
    b'{"t": "soon"}': 't is "soon", not timestamp',
    b'{"x": "%"}': "x is not base64",
    b'{"a": [1, "2"]}': "a[1] is a string, not int",
    b'{"a": 1}': "a is a number, not an array",
    b'{"o": [1]}': "o is an array, not an object",
    b'{"o": {"p": {}}}': "o.p is an object, not int",
    b'{"m": {"k": 1e999}}': "m.k is out of the range of double",
    b'{"list": [{"q": 1}, {"q": 1e39}]}': "list[1].q is out of the range of float",
}


def write(root: Path, values: list[bytes | None], keys: list[bytes | None] | None = None) -> Path:
    """A log directory with one partition of these values, offsets from 0 on."""
    log = PartitionBuilder(root / "t-0")
    log.append(list(zip(keys or [b"k"] * len(values), values, strict=True)))
    log.flush()
    return root


def rows(path: Path | str) -> list[dict[str, Any]]:
    """The rows of Parquet files in the order of offsets."""
    found: list[dict[str, Any]] = sorted(
        pq.read_table(path).to_pylist(), key=lambda row: (row["offset"], str(row.get("column")))
    )
    return found


# ------------------------------------------------------------------------------------------------------------ no Spark


def test_names_are_unique() -> None:
    """Columns that differ in case only are one column to Spark; a made-up name does not take one that the data has."""
    assert unique_names(["a", "A", "b", "a_2", "a"]) == ["a", "A_3", "b", "a_2", "a_4"]
    assert unique_names(["x", "y"], taken=["X"]) == ["x_2", "y"]


def test_reasons_where_python_sees_none() -> None:
    """A record that only Spark refuses still has a reason, as has one that only Python refuses."""
    assert json_reason(b"{}", StructType()) == "does not fit the schema"
    assert json_reason(b"1" * 5000, StructType()).startswith("not JSON: ")
    assert utf8_reason(b"ab\xc3") == "not UTF-8: byte 2 (0xc3)"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"flatten": True}, "--flatten is for JSON values: add --decode-value json"),
        ({"save_schema": "{root}/s.json", "decode_value": "utf8"}, "--save-schema is for JSON values"),
        ({"save_schema": "{root}/nothing/s.json"}, "is a directory or in a directory that does not exist"),
        ({"save_schema": "{root}"}, "is a directory or in a directory that does not exist"),
        ({"save_schema": "{root}/logs/s.json"}, "is in .*logs, which must not change"),
        ({"save_schema": "{root}/link/t-0/s.json"}, "is in .*logs"),
        ({"save_schema": "{root}/out/s.json", "mode": "append"}, "is in .*out"),
        ({"save_schema": "{root}/meta.properties"}, "has the name of a file of Kafka"),
        ({"partition_by": ("value_id",)}, "cannot partition by value_id"),
    ],
)
def test_options_that_do_not_fit(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    """Refused before a JVM starts; a schema must not be written over Kafka's files, or be replaced with the output."""
    source = {"paths": str(write(tmp_path / "logs", [b"{}"]))}
    (tmp_path / "link").symlink_to("logs")
    (tmp_path / "out").mkdir()
    given = {name: text.format(root=tmp_path) if isinstance(text, str) else text for name, text in options.items()}
    if "save_schema" in given:
        given = {"decode_value": "json", **given}
    with pytest.raises(ExportError, match=says):
        check_export(ExportOptions(out=str(tmp_path / "out"), source=source, **{"mode": "append", **given}))


# ---------------------------------------------------------------------------------------------------------- with Spark


@pytest.mark.spark
def test_text_and_the_columns_that_are_named(run: Run, tmp_path: Path) -> None:
    """What is not UTF-8 is null and listed with its bytes; the summary has the columns with such bytes only."""
    values = [b"plain", "grün".encode(), b"\xff\xfe", None, b""]
    logs = write(tmp_path / "logs", values, [b"a", b"\xfe", b"\xfd", None, b"c"])
    words = (logs, "--out", tmp_path / "out", "--mode", "overwrite")
    side = f"{tmp_path / 'out'}.undecoded"
    code, out, _ = run(*words, "--decode-value", "utf8")
    assert code == EXIT_OK and f"1 rows were not decoded (the value of 1); the raw records are in {side}\n" in out
    found = rows(tmp_path / "out")
    assert [row["value"] for row in found] == ["plain", "grün", None, None, ""]
    assert "valueBytes" not in found[0] and found[1]["key"] == b"\xfe"
    code, out, _ = run(*words, "--decode-value", "utf8", "--decode-key", "utf8", "--columns", "value,key,offset")
    assert code == EXIT_OK and "2 rows were not decoded (the key of 2 and the value of 1); the raw records are in" in out
    assert [row["key"] for row in rows(tmp_path / "out")] == ["a", None, None, None, "c"]
    listed = [(row["offset"], row["column"], row["key"], row["value"], row["reason"]) for row in rows(side)]
    assert listed == [
        (1, "key", b"\xfe", "grün".encode(), "not UTF-8: byte 0 (0xfe)"),
        (2, "key", b"\xfd", b"\xff\xfe", "not UTF-8: byte 0 (0xfd)"),
        (2, "value", b"\xfd", b"\xff\xfe", "not UTF-8: byte 0 (0xff)"),
    ]
    assert {(row["topic"], row["partition"]) for row in rows(side)} == {("t", 0)}
    # A run in which all decodes leaves no list of an earlier one behind.
    code, out, _ = run(*words, "--decode-value", "utf8", "--ending-offsets", '{"t":{"0":2}}')
    assert code == EXIT_OK and "not decoded" not in out and not Path(side).exists()


@pytest.mark.spark
def test_json_that_fits_and_that_does_not(run: Run, tmp_path: Path) -> None:
    """Each value is decoded as a whole, or null and listed with its reason; it never fails the job."""
    values: list[bytes | None] = [*FITS, None, *MISFITS]
    logs, side = write(tmp_path / "logs", values), f"{tmp_path / 'out'}.undecoded"
    code, out, _ = run(logs, "--out", tmp_path / "out", "--decode-value", "json", "--value-schema", SCHEMA)
    assert code == EXIT_OK
    assert f"{len(MISFITS)} rows were not decoded (the value of {len(MISFITS)}); the raw records are in {side}" in out
    found = [row["value"] for row in rows(tmp_path / "out")]
    for value, wanted in zip(found, FITS.values(), strict=False):
        shown = value if value is None else {name: field for name, field in value.items() if field is not None}
        assert shown == wanted
    assert found[len(FITS) :] == [None] * (1 + len(MISFITS))
    listed = rows(side)
    assert [row["value"] for row in listed] == list(MISFITS)
    assert [row["offset"] for row in listed] == list(range(len(FITS) + 1, len(values)))
    for row, reason in zip(listed, MISFITS.values(), strict=True):
        assert row["reason"].startswith(reason), row


@pytest.mark.spark
def test_numbers_in_fields_of_type_string(run: Run, tmp_path: Path) -> None:
    """They are the number as the JSON has it, digit by digit: a double has 17 digits, and no zeros at the end."""
    logs = write(tmp_path / "logs", list(TEXTS))
    schema = ("--value-schema", "s string, d double", "--columns", "value,offset")
    assert run(logs, "--out", tmp_path / "out", "--decode-value", "json", *schema)[0] == EXIT_OK
    assert [row["value"]["s"] for row in rows(tmp_path / "out")] == list(TEXTS.values())


# Values, and their fields that the schema of the test does not have.
UNKNOWN_FIELDS: dict[bytes, list[str]] = {
    b'{"b": 1, "o": {"p": 1, "q": {}}}': ["b", "o.q"],
    b'{"l": [{"p": 1}, null, {"p": 2, "in list": 3}, {"in list": 4}]}': ["l[*].in list"],
    b'{"l": [], "n": [[{"p": 1}], null, [{"p": 1}, {"": "x"}]]}': ['n[*][*].""'],
    b'{"m": {"k": {"p": 1, "v": {}}, "p": null}}': ["m.*.v"],
    b'{"s-t": {"p": 1, "q": 2}}': ["s-t.q"],
    b'{"o": null, "l": [{"p": 1}, {}], "n": [[], null], "m": {"z": {"p": 1}}, "s-t": {}}': [],
}


@pytest.mark.spark
def test_unknown_fields_at_any_depth(spark: Any) -> None:
    """Those of objects in arrays and maps were left out without a word."""
    part = "struct<p: int>"
    schema = StructType.fromDDL(f"o {part}, l array<{part}>, n array<array<{part}>>, m map<string, {part}>, `s-t` {part}")
    decoding = Decoding("value", "json", schema, schema)
    frame = decoding.with_decoded(spark.createDataFrame([(value,) for value in UNKNOWN_FIELDS], "value binary"))
    found = frame.select(decoding.failed, decoding.unknown_fields().alias("names")).collect()
    assert [(is_bad, names) for is_bad, names in found] == [(False, names) for names in UNKNOWN_FIELDS.values()]


@pytest.mark.spark
def test_fields_that_the_schema_does_not_have(run: Run, tmp_path: Path) -> None:
    """They are counted and named, also one without a name, which no inferred schema has; values that do not decode are not."""
    values = [b'{"id": 1, "b": 2}', b'{"o": {"p": 1, "q": {}}}', b'{"id": "x", "a": 1}', b'{"id": 1}', b'{"o": null}', None]
    logs = write(tmp_path / "logs", values)
    words = ("--decode-value", "json", "--value-schema", "id bigint, o struct<p: int>")
    _, out, _ = run(logs, "--out", tmp_path / "out", *words, "--report", tmp_path / "report")
    assert "2 values have fields that the schema does not have, such as b and o.q: they are not in the output\n" in out
    assert json.loads((tmp_path / "report").read_text())["unknownFields"] == {"rows": 2, "names": ["b", "o.q"]}
    logs = write(tmp_path / "more", [b'{"id": 1, "": 2}', b'{"id": 2, "s": ""}'])
    _, out, _ = run(logs, "--out", tmp_path / "out2", "--decode-value", "json")
    assert '1 value has fields that the schema does not have, such as "": they are not in the output\n' in out


@pytest.mark.spark
def test_only_tombstones(run: Run, tmp_path: Path) -> None:
    """There is nothing to infer a schema from, and nothing to decode."""
    logs = write(tmp_path / "logs", [None, None])
    code, _, err = run(logs, "--out", tmp_path / "out", "--decode-value", "json")
    assert code == EXIT_OK and "all values are null" in err
    assert [row["value"] for row in rows(tmp_path / "out")] == [None, None]


@pytest.mark.spark
def test_what_counts_while_the_log_grows(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass reads up to the same offsets, and executors elsewhere, which report by rows, give the same summary."""
    log = PartitionBuilder(tmp_path / "logs" / "t-0")
    log.append([(b"k", b'{"id": 1}'), (b"k", b"bad"), (b"k", None)])
    log.flush()
    written = parquet_export._write

    def grow_behind(*args: Any, **options: Any) -> bool:
        done = written(*args, **options)
        log.append([(b"k", b"worse")])
        log.flush()
        return done

    monkeypatch.setattr(parquet_export, "_write", grow_behind)
    for is_local in (True, False):
        monkeypatch.setattr(parquet_export, "is_on_this_machine", lambda master, is_local=is_local: is_local)
        out = tmp_path / f"out{is_local}"
        before = len(log.rows)
        code, printed, _ = run(
            tmp_path / "logs", "--out", out, "--decode-value", "json", "--value-schema", "id int", "--columns", "value"
        )
        assert code == EXIT_OK and f"{before} rows written" in printed
        bad = 1 if is_local else before - 2
        assert f"{bad} rows were not decoded (the value of {bad}); the raw records are in {out}.undecoded\n" in printed
        assert pq.read_table(out).column_names == ["value"] and pq.read_table(f"{out}.undecoded").num_rows == bad


@pytest.mark.spark
def test_an_inferred_schema_serves_again(run: Run, tmp_path: Path) -> None:
    """It is printed as DDL and saved; either gives the same columns for other values. Damaged values do not change it."""
    odd = [
        b'[{"list": 1}]',
        b"5",
        b'{"bad": NaN}',
        b'{"deep": ' + b'{"a":' * 500 + b"1" + b"}" * 501,
        b'{"utf": "\xff"}',
        b"",
        None,
    ]
    logs = write(
        tmp_path / "logs",
        [b'{"id": 1, "who": {"name": "a", "Name": 2}}', b'{"id": 2, "x": 1, "x": "y"}', b'{"a b": 1.5}', *odd],
    )
    saved = tmp_path / "schema.json"
    words = (logs, "--decode-value", "json", "--save-schema", saved)
    code, out, err = run(*words, "--out", tmp_path / "inferred")
    assert code == EXIT_OK and "6 rows were not decoded" in out
    printed = next(line for line in err.splitlines() if "schema of the values" in line).split(": ", 2)[2]
    assert printed == "`a b` DOUBLE,id BIGINT,who STRUCT<Name: BIGINT, name: STRING>,x STRING"
    assert "kcli: the field who.name is written as who.name_2: " in err
    assert StructType.fromJson(json.loads(saved.read_text())).fieldNames() == ["a b", "id", "who", "x"]
    schema = pq.read_schema(next((tmp_path / "inferred").glob("*.parquet"))).field("value").type
    assert rows(tmp_path / "inferred")[0]["value"]["who"] == {"Name": 2, "name_2": "a"}
    other = write(tmp_path / "other", [b'{"id": "text", "new": 1}', b'{"id": 3}'])
    (tmp_path / "schema.ddl").write_text(printed + "\n")
    for number, given in enumerate((printed, saved, tmp_path / "schema.ddl")):
        to = tmp_path / f"given{number}"
        code, out, err = run(other, "--out", to, "--decode-value", "json", "--value-schema", given)
        assert code == EXIT_OK and "1 rows were not decoded (the value of 1)" in out and "schema of the values" not in err
        assert pq.read_schema(next(to.glob("*.parquet"))).field("value").type == schema
    code, _, err = run(*words, "--out", tmp_path / "few", "--infer-from", "1")
    assert code == EXIT_OK and "id BIGINT,who STRUCT<Name: BIGINT, name: STRING>\n" in err
    (tmp_path / "none").mkdir()
    code, _, err = run(write(tmp_path / "none" / "l", [b"[1]"]), "--decode-value", "json", "--out", tmp_path / "none" / "o")
    assert code == EXIT_CANNOT_RUN and "no value is a JSON object with a field" in err


@pytest.mark.spark
def test_fields_as_columns(run: Run, spark: Any, tmp_path: Path) -> None:
    """--flatten: value_FIELD in the place of value, structs in depth, arrays as they are; no two columns of one name."""
    first = {"id": 1, "timestamp": "t", "place": {"city": {"zip": 9}, "tags": [{"k": 1}]}, "place_tags": "p", "Id": True}
    logs = write(tmp_path / "logs", [json.dumps(first).encode(), b"not json", None])
    words = (logs, "--out", tmp_path / "out", "--decode-value", "json", "--flatten")
    code, out, _ = run(*words)
    assert code == EXIT_OK and "1 rows were not decoded (the value of 1)" in out
    names = pq.read_schema(next((tmp_path / "out").glob("*.parquet"))).names
    fields = ["value_Id", "value_id_2", "value_place_city_zip", "value_place_tags", "value_place_tags_2", "value_timestamp"]
    assert names[:9] == ["key", *fields, "topic", "partition"]
    found = rows(tmp_path / "out")
    assert [found[0][name] for name in fields] == [True, 1, 9, [{"k": 1}], "p", "t"]
    assert all(row[name] is None for row in found[1:] for name in fields)
    # Spark, which ignores case, reads it.
    assert spark.read.parquet(str(tmp_path / "out")).where("value_ID = true").count() == 1
    schema = ("--value-schema", "id int, timestamp string", "--mode", "overwrite")
    assert run(*words, *schema, "--partition-by", "value_id,topic")[0] == EXIT_OK
    assert {path.name for path in (tmp_path / "out").glob("value_id=*")} == {
        "value_id=1",
        "value_id=__HIVE_DEFAULT_PARTITION__",
    }
    code, _, err = run(*words, *schema, "--partition-by", "value_city")
    assert code == EXIT_CANNOT_RUN and "cannot partition by value_city: the columns are " in err


@pytest.mark.spark
@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("id bigger than", "'id bigger than' is not a schema: --value-schema takes DDL such as"),
        ("schema.json", "'schema.json' is not a schema"),
        ("bigint", "'bigint' is not the schema of a JSON object"),
        ("", "'' is not the schema of a JSON object"),
        ("a int, a string", "has the field a twice"),
        ("a struct<b: int, b: int>", "has the field a.b twice"),
        ("a struct<>", "the struct a has no fields"),
        ("a varchar(3)", "the type varchar(3) of a cannot be decoded from JSON; try string"),
        ("a struct<b: void>", "the type void of a.b cannot be decoded"),
        ("a interval day to second", "cannot be decoded"),
        ("a map<int, int>", "the keys of the map a must be of type string"),
        ('{"type": "struct"}', "is not a schema"),
    ],
)
def test_a_schema_that_is_none(run: Run, tmp_path: Path, schema: str, says: str) -> None:
    """One sentence that says what is wrong with it, before anything is written; no error of Spark's, no fault of kcli."""
    words = (write(tmp_path / "logs", [b"{}"]), "--out", tmp_path / "out", "--decode-value", "json")
    code, _, err = run(*words, "--value-schema", schema)
    assert code == EXIT_CANNOT_RUN and says in err and err.count("\n") == 1, err
    assert not (tmp_path / "out").exists()
