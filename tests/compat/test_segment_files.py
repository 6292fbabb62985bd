"""Closed segments, read by tools that know nothing of Refstream, row for row.

REFSTREAM_COMPAT_DIR names a folder with ``topics/<topic>/data/**`` and ``expected.jsonl``, as the example
``compat_samples`` of the crate refstream-segments writes it. A tool that is not installed is skipped.
"""

import base64
import datetime
import json
import math
import os
import pathlib

import pytest

FOLDER = os.environ.get("REFSTREAM_COMPAT_DIR")
pytestmark = pytest.mark.skipif(not FOLDER, reason="REFSTREAM_COMPAT_DIR is not set")

BINARY = {"key_bytes", "value"}
TIMES = {"append_time", "event_time", "source_mtime"}
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


def expected():
    """The rows in order, as Python values."""
    rows = [json.loads(line) for line in (pathlib.Path(FOLDER) / "expected.jsonl").read_text("utf-8").splitlines()]
    for row in rows:
        for name in BINARY:
            row[name] = None if row[name] is None else base64.b64decode(row[name])
        for header in row["headers"] or []:
            header["value"] = base64.b64decode(header["value"])
    return sorted(rows, key=lambda row: (row["partition_id"], row["log_offset"]))


def data():
    """The data folder of the one topic."""
    (found,) = pathlib.Path(FOLDER).glob("topics/*/data")
    return found


def pattern():
    return str(data() / "**" / "*.parquet")


def micros(value):
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            value = value.replace(tzinfo=datetime.timezone.utc)
        return (value - EPOCH) // datetime.timedelta(microseconds=1)
    return value


def plain(value):
    """A tool's value as a plain Python one."""
    if value is None or type(value).__name__ in ("NaTType", "NAType") or (isinstance(value, float) and math.isnan(value)):
        return None
    if hasattr(value, "tolist") and not isinstance(value, (bytes, str)):
        value = value.tolist()
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, datetime.datetime):
        return micros(value)
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def compare(found):
    rows = [{name: plain(value) for name, value in row.items()} for row in found]
    rows.sort(key=lambda row: (row["partition_id"], row["log_offset"]))
    wanted = expected()
    assert [(r["partition_id"], r["log_offset"]) for r in rows] == [(r["partition_id"], r["log_offset"]) for r in wanted]
    for row, want in zip(rows, wanted):
        for name, value in want.items():
            assert row[name] == value, (name, row["partition_id"], row["log_offset"])
        assert row.keys() == want.keys()


def test_duckdb():
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    result = connection.execute("select * from read_parquet(?, hive_partitioning = true)", [pattern()])
    names = [column[0] for column in result.description]
    compare(dict(zip(names, row)) for row in result.fetchall())


def test_duckdb_prunes_by_day_and_filters():
    duckdb = pytest.importorskip("duckdb")
    day = expected()[0]["ingest_date"]
    query = "select count(*), min(payload.uri) from read_parquet(?, hive_partitioning = true) where ingest_date = ?"
    count, uri = duckdb.connect().execute(query, [pattern(), day]).fetchone()
    rows = [row for row in expected() if row["ingest_date"] == day]
    assert count == len(rows)
    assert uri == min(row["payload"]["uri"] for row in rows if row["payload"])


def test_duckdb_finds_a_key_by_bloom_filter():
    duckdb = pytest.importorskip("duckdb")
    row = next(row for row in expected() if row["key"])
    query = "select partition_id, log_offset from read_parquet(?) where key = ?"
    assert duckdb.connect().execute(query, [pattern(), row["key"]]).fetchall() == [(row["partition_id"], row["log_offset"])]


def test_pyarrow():
    dataset = pytest.importorskip("pyarrow.dataset")
    table = dataset.dataset(str(data()), format="parquet", partitioning="hive").to_table()
    compare(table.to_pylist())


def test_pyarrow_verifies_page_checksums_and_field_ids():
    parquet = pytest.importorskip("pyarrow.parquet")
    for path in sorted(data().rglob("*.parquet")):
        parquet.ParquetFile(path, page_checksum_verification=True).read()
        schema = parquet.read_schema(path)
        ids = {field.name: int(field.metadata[b"PARQUET:field_id"]) for field in schema}
        assert ids["topic"] == 1 and ids["payload"] == 8 and ids["headers"] == 24 and ids["producer_epoch"] == 33
        metadata = parquet.read_metadata(path)
        assert metadata.created_by.startswith("refstream version ")
        assert metadata.metadata[b"refstream.format_version"] == b"1"
        assert metadata.row_group(0).sorting_columns[0].column_index == 1


def test_polars():
    polars = pytest.importorskip("polars")
    frame = polars.scan_parquet(pattern(), hive_partitioning=True).collect()
    compare(frame.to_dicts())


def test_pandas():
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.read_parquet(data(), dtype_backend="pyarrow")
    compare(frame.to_dict("records"))
