"""Parquet files that are encrypted, damaged, incomplete or not what their folder says: errors that name them."""

import base64
import errno
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from smalti import SmaltiError, convert
from smalti.errors import FormatError


def write(path, group_rows=100, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=group_rows)
    return path


def write_encrypted(path, **options):
    from pyarrow.parquet import encryption

    class Keys(encryption.KmsClient):
        def wrap_key(self, key, name):
            return base64.b64encode(key)

        def unwrap_key(self, key, name):
            return base64.b64decode(key)

    factory = encryption.CryptoFactory(lambda _: Keys())
    chosen = encryption.EncryptionConfiguration(footer_key="footer", **options)
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), chosen)
    table = pa.table({"a": [1, 2], "b": ["x", "y"]})
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)


ENCRYPTED = {
    "one column": {"plaintext_footer": True, "column_keys": {"key": ["b"]}},
    "all columns": {"plaintext_footer": True, "column_keys": {"key": ["a", "b"]}},
    "footer": {"plaintext_footer": False, "column_keys": {"key": ["b"]}},
    "one key": {"uniform_encryption": True},
}


@pytest.mark.parametrize("options", ENCRYPTED.values(), ids=ENCRYPTED.keys())
def test_an_encrypted_file_is_an_error_and_does_not_end_the_process(tmp_path, options):
    write_encrypted(tmp_path / "a.parquet", **options)
    with pytest.raises(SmaltiError, match=r"a\.parquet is encrypted, or some of its columns are"):
        convert(tmp_path / "a.parquet", tmp_path / "set", processes=1)


def test_an_encrypted_column_of_a_file_that_does_not_declare_it_is_an_error(tmp_path):
    write_encrypted(tmp_path / "a.parquet", **ENCRYPTED["all columns"])
    data = (tmp_path / "a.parquet").read_bytes()
    length = int.from_bytes(data[-8:-4], "little")  # without its signature, which shows the encryption
    (tmp_path / "a.parquet").write_bytes(data[:-36] + (length - 28).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(SmaltiError, match=r"a\.parquet, row group 0 cannot be read: Cannot decrypt|is damaged"):
        convert(tmp_path / "a.parquet", tmp_path / "set", processes=1)


def write_summary(folder, names, **options):
    """Write files of three rows each, and the summary that lists them."""
    collected = []
    for name in names:
        write(folder / name, id=[1, 2, 3])
        collected.append(pq.read_metadata(folder / name))
        collected[-1].set_file_path(name)
    pq.write_metadata(pa.schema([("id", pa.int64())]), folder / "_metadata", metadata_collector=collected, **options)


@pytest.mark.slow
def test_a_file_that_the_summary_of_a_folder_lists_must_be_there_with_its_rows(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    write_summary(folder, ["a.parquet", "b.parquet"])
    assert convert(folder, tmp_path / "1", processes=1).rows == 6
    write(folder / "b.parquet", id=[1])
    with pytest.raises(FormatError, match=r"_metadata lists b\.parquet with 3 rows, which has 1 rows; fetch the files"):
        convert(folder, tmp_path / "2", processes=1)
    (folder / "b.parquet").unlink()
    with pytest.raises(FormatError, match=r"_metadata lists b\.parquet with 3 rows, which is missing; fetch the files"):
        convert(folder, tmp_path / "2", processes=1)
    write_encrypted(folder / "_metadata", **ENCRYPTED["all columns"])
    with pytest.raises(FormatError, match=r"_metadata cannot be read: .*; or remove _metadata if it is out of date"):
        convert(folder, tmp_path / "2", processes=1)


def varint(number):
    data = b""
    while number > 0x7F:
        data += bytes([number & 0x7F | 0x80])
        number >>= 7
    return data + bytes([number])


def with_footer(footer):
    return b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"


GROUP = b"\x35\x02\x18\x01g\x15\x02\x00"  # optional, named g, one child
LEAF = b"\x15\x02\x25\x02\x18\x01x\x00"  # an optional int32, named x
ROOT = b"\x48\x01r\x15\x02\x00"


def schema_of(*elements, count=None):
    number = len(elements) if count is None else count
    return b"\x15\x02\x19\xfc" + varint(number) + b"".join(elements)


DAMAGED = {
    "no file": b"PAR1",
    "nothing between": b"PAR1PAR1",
    "another file": b"x" * 100,
    "cut short": b"PAR1" + bytes(100),
    "a longer footer than the file": b"PAR1" + bytes(20) + (1 << 31).to_bytes(4, "little") + b"PAR1",
    "a huge number of columns": with_footer(schema_of(ROOT, LEAF, count=2_000_000_000)),
    "columns nested 50,000 deep": with_footer(schema_of(ROOT, *[GROUP] * 50_000, LEAF) + b"\x16\x00\x19\x0c\x00"),
    "unknown fields nested 50,000 deep": with_footer(
        schema_of(ROOT, LEAF) + b"\x16\x00\x19\x0c\xbc" + b"\x1c" * 50_000
    ),
    "a name that is no text": with_footer(schema_of(ROOT, LEAF.replace(b"x", b"\xff")) + b"\x16\x00\x19\x0c\x00"),
    "rows without row groups": with_footer(schema_of(ROOT, LEAF) + b"\x16\x10\x19\x0c\x00"),
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_footer_is_an_error_that_names_the_file(tmp_path, data):
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(FormatError, match=r"a\.parquet cannot be read as Parquet"):
        convert(tmp_path / "a.parquet", tmp_path / "set", processes=1)


def test_a_file_that_cannot_be_opened_is_not_called_damaged(tmp_path, monkeypatch):
    write(tmp_path / "a.parquet", id=[1])

    def refuse(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(pa, "OSFile", refuse)
    with pytest.raises(SmaltiError, match=r"a\.parquet cannot be opened: .*Too many open files"):
        convert(tmp_path / "a.parquet", tmp_path / "set", processes=1)


def test_a_page_whose_checksum_does_not_fit_is_an_error(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [7] * 99}), path, write_page_checksum=True, use_dictionary=False, compression="none")
    data = bytearray(path.read_bytes())
    data[data.index((7).to_bytes(8, "little") * 3)] = 8
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"a\.parquet, row group 0 cannot be read: .*CRC"):
        convert(path, tmp_path / "set", processes=1)


def test_a_row_group_with_fewer_rows_than_its_footer_says_is_an_error(tmp_path):
    path = tmp_path / "a.parquet"
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": pa.array(range(50), pa.int32())}), sink, compression="none")
    data = sink.getvalue()
    footer = int.from_bytes(data[-8:-4], "little")
    begin = len(data) - 8 - footer
    path.write_bytes(data[:begin] + data[begin:].replace(b"\x16\x64", b"\x16\x66"))  # 50 and 51, twice as integers are
    with pytest.raises(FormatError, match=r"a\.parquet, row group 0|cannot be read"):
        convert(path, tmp_path / "set", processes=1)
