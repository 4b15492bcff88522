"""Tar files of WebDataset as a source: samples, types, incomplete samples, and hostile files."""

import io
import re
import shutil
import subprocess
import tarfile

import numpy as np
import pyarrow as pa
import pytest

from smalti.conversion import convert
from smalti.conversion.sources import webdataset
from smalti.errors import FormatError, SchemaError, SmaltiError, StoreNotFound
from smalti.torch import LocalDataset
from tests.conversion.source_rows import DATA, read, rows_of, source_of


def write_tar(path, members, mode="w", **options):
    """Write a tar file of names and contents; a `TarInfo` in place of a name is taken as it is."""
    with tarfile.open(path, mode, **options) as tar:
        for name, content in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(content) if info.isreg() else 0
            tar.addfile(info, io.BytesIO(content))
    return path


def info(name, **fields):
    made = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(made, field, value)
    return made


def test_a_file_of_the_webdataset_package_has_the_same_samples(tmp_path):
    convert(DATA / "webdataset.tar.gz", tmp_path / "set", processes=1)
    dataset = LocalDataset(tmp_path / "set")
    assert dict(dataset.shards[0].schema.columns()) == {
        "caption.txt": "str", "cls": "int64", "jpg": "jpeg", "json": "json", "npy": "ndarray:float32",
    }  # fmt: skip
    assert len(dataset) == 3
    sample = dataset[2]
    assert (sample["cls"], sample["caption.txt"], sample["json"]) == (2, "cäption 2", {"n": 2, "l": [1, None]})
    assert sample["npy"].tolist() == [0.0, 1.0, 2.0]
    assert sample["jpg"].size == (8, 8)


def test_members_that_are_no_samples_are_left_out_counted_and_named(tmp_path, caplog):
    write_tar(
        tmp_path / "a.tar",
        [
            ("._1.txt", b"macOS"),
            ("dir/a.b/._1.TXT", b"macOS"),
            ("dir/a.b/.1.txt", b"hidden"),
            (".DS_Store", b"macOS"),
            ("__MACOSX/dir/._1.txt", b"macOS"),
            (info("dir", type=tarfile.DIRTYPE), b""),
            ("README", b"no ending"),
            ("__meta__/x.json", b"{}"),
            ("dir/a.b/1.TXT", b"one"),
            ("dir/a.b/1.cls", b" 7\n"),
            ("dir/a.b/2.txt", b""),
            ("dir/a.b/2.cls", b"-1"),
        ],
    )
    assert read(tmp_path / "a.tar") == [{"txt": "one", "cls": 7}, {"txt": "", "cls": -1}]
    assert "a.tar: left out: 7 members that are no part of a sample (._1.txt, " in caplog.text


def test_names_with_underscores_are_samples_except_at_the_start_as_webdataset_reads_them(tmp_path):
    names = ["a/__x__/1.txt", "a__b__/2.txt", "__3.txt", "__meta__.txt"]
    write_tar(tmp_path / "a.tar", [*((name, name.encode()) for name in names), ("__x__/5.txt", b"")])
    assert [row["txt"] for row in read(tmp_path / "a.tar")] == names


def test_joined_tars_are_refused_and_the_advice_gives_all_samples(tmp_path):
    whole = b"".join(
        write_tar(tmp_path / f"{n}.tar", [(f"{n}{key}.txt", b"x") for key in "ab"]).read_bytes() for n in "12"
    )
    folder = tmp_path / "joined"
    folder.mkdir()
    (folder / "all.tar").write_bytes(whole)
    with pytest.raises(FormatError, match=r"all\.tar: something follows .*`tar --ignore-zeros -xf` and pack the files"):
        read(folder)
    with tarfile.open(folder / "all.tar", ignore_zeros=True) as tar:  # as the option of `tar`
        members = [(member.name, tar.extractfile(member).read()) for member in tar]
    (folder / "all.tar").unlink()
    write_tar(folder / "again.tar", members)
    assert len(read(folder)) == 4


def tar_program(folder, *arguments):
    """Run GNU tar in a folder; skip the test without one."""
    if shutil.which("tar") is None:
        pytest.skip("needs GNU tar")
    if subprocess.run(["tar", *arguments], cwd=folder, check=False, capture_output=True).returncode:
        pytest.skip("needs GNU tar")


ADVICE = {
    "pack the files again without the option `-b`": (["-b", "256"], []),
    "by `tar --dereference --hard-dereference`": ([], ["--dereference", "--hard-dereference"]),
}


@pytest.mark.parametrize("advice", ADVICE)
def test_a_tar_that_was_packed_as_the_error_advises_is_read(tmp_path, advice):
    packed, packed_again = ADVICE[advice]
    for number in (1, 2):
        (tmp_path / f"{number}.cls").write_text(str(number))
    (tmp_path / "3.cls").hardlink_to(tmp_path / "1.cls")
    (tmp_path / "4.cls").symlink_to("2.cls")
    files = [f"{number}.cls" for number in ((1, 2) if packed else (1, 2, 3, 4))]
    tar_program(tmp_path, *packed, "-cf", "a.tar", *files)
    with pytest.raises(FormatError, match=re.escape(advice)):
        read(tmp_path / "a.tar")
    tar_program(tmp_path, *packed_again, "-cf", "a.tar", *files)
    assert [row["cls"] for row in read(tmp_path / "a.tar")] == [1, 2, 1, 2][: len(files)]


def test_a_part_names_the_sample_of_each_row_of_its_last_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(webdataset, "_BATCH_ROWS", 2)
    members = [(f"{key}.bin", b"x") for key in "abc"]
    (part,) = source_of(write_tar(tmp_path / "many.tar", members)).parts()
    names = []
    for batch in part.batches():
        names += [part.origin(len(names) + number) for number in range(batch.num_rows)]
    assert names == ["many.tar, sample 'a'", "many.tar, sample 'b'", "many.tar, sample 'c'"]


@pytest.mark.parametrize(("first", "other"), [("i8", "f8"), ("f4", "f8"), ("i4", "i8"), ("u1", "?"), ("i8", "U1")])
def test_a_number_of_another_type_than_the_first_one_is_refused_and_not_changed(tmp_path, first, other):
    members = []
    for key, value in (("1", np.array(1, first)), ("2", np.array(1, f">{first}")), ("3", np.array(1.5).astype(other))):
        file = io.BytesIO()
        np.save(file, value)
        members.append((f"{key}.npy", file.getvalue()))
    assert read(write_tar(tmp_path / "a.tar", members[:2])) == [{"npy": 1}, {"npy": 1}]
    assert read(write_tar(tmp_path / "a.tar", members[1:2])) == [{"npy": 1}]
    with pytest.raises(SchemaError, match=r"a\.tar, sample '3': the member \.npy is not of type .*: expected one "):
        read(write_tar(tmp_path / "a.tar", members))


@pytest.mark.parametrize("name", ["a.tgz", "a.tbz2", "a.txz", "a.tzst", "a.tar.xz", "a.tar.bz2", "a.tar.lz4"])
def test_a_compressed_tar_is_recognised_by_its_name(tmp_path, name):
    (tmp_path / "in").mkdir()
    write_tar(tmp_path / "in" / name, [("1.txt", b"x")], mode="w:xz")
    assert read(tmp_path / "in") == [{"txt": "x"}]


def test_a_compressed_tar_is_read_whatever_its_name_is(tmp_path):
    for mode, name in (("w:gz", "a.tar"), ("w", "a.tar.gz"), ("w:xz", "a.tgz"), ("w:bz2", "a.tar.zst")):
        write_tar(tmp_path / name, [("1.txt", b"x")], mode=mode)
        assert read(tmp_path / name) == [{"txt": "x"}]


def test_the_members_of_a_sample_together_have_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(webdataset, "_MAX_SAMPLE", 1000)
    write_tar(tmp_path / "a.tar", [("1.a", b"x" * 600), ("1.b", b"x" * 400), ("2.a", b"x" * 600), ("2.b", b"x" * 401)])
    with pytest.raises(
        FormatError, match=r"member '2\.b' has 401 bytes, and its sample '2' 1,001 so far; at most 1,000"
    ):
        read(tmp_path / "a.tar")


def test_an_array_that_claims_more_than_it_has_is_an_error_without_the_memory(tmp_path):
    for shape in ((6_000_000_000_000,), (5,), (7,), (-6,), (2, -3), (0, 1 << 70)):
        contents = []
        for declared in ((6,), shape):
            file = io.BytesIO()
            header = {"descr": "<f4", "fortran_order": False, "shape": declared}
            np.lib.format.write_array_header_1_0(file, header)
            contents.append(file.getvalue() + bytes(0 if 0 in declared else 24))
        write_tar(tmp_path / "a.tar", [("1.npy", contents[0]), ("2.npy", contents[1])])
        with pytest.raises(SchemaError, match=r"a\.tar, sample '2': the member \.npy is not .* declares shape"):
            read(tmp_path / "a.tar")


@pytest.mark.parametrize("name", [b"1.\xff\xfe", b"1.", b"1.a b", b"1." + b"x" * 5000])
def test_names_of_any_bytes_give_a_set_or_an_error_of_the_tree(tmp_path, name):
    write_tar(tmp_path / "a.tar", [(name.decode("utf-8", "surrogateescape"), b"x")], errors="surrogateescape")
    try:
        manifest = convert(tmp_path / "a.tar", tmp_path / "set", processes=1)
    except SmaltiError:
        return
    assert manifest.rows == 1


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_foreign_names_are_read_in_every_form_of_tar(tmp_path, format):
    long = "/".join(["folder" * 3] * (7 if format == tarfile.USTAR_FORMAT else 30))
    members = [(f"{long}/ü{n}.txt", str(n).encode()) for n in range(3)]
    write_tar(tmp_path / "a.tar", members, format=format, encoding="utf-8")
    assert read(tmp_path / "a.tar") == [{"txt": "0"}, {"txt": "1"}, {"txt": "2"}]


def test_an_incomplete_sample_is_an_error_or_has_nulls_or_is_avoided(tmp_path):
    write_tar(tmp_path / "a.tar", [("1.txt", b"one"), ("1.cls", b"1"), ("2.txt", b"two")])
    with pytest.raises(FormatError, match=r"a\.tar, sample '2': it has no member \.cls"):
        read(tmp_path / "a.tar")
    assert read(tmp_path / "a.tar", missing="null") == [{"txt": "one", "cls": 1}, {"txt": "two", "cls": None}]
    assert read(tmp_path / "a.tar", columns=("txt",)) == [{"txt": "one"}, {"txt": "two"}]
    write_tar(tmp_path / "b.tar", [("1.txt", b"one"), ("2.txt", b"two"), ("2.seg", b"x")])
    with pytest.raises(FormatError, match=r"sample '2': it has a member \.seg"):
        read(tmp_path / "b.tar")
    with pytest.raises(SchemaError, match="there is no column 'seg'"):
        read(tmp_path / "b.tar", columns=("seg",))
    with pytest.raises(ValueError, match="`missing`"):
        read(tmp_path / "b.tar", missing="skip")


def test_keys_may_return_in_another_file_but_not_in_one(tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    write_tar(folder / "0.tar", [("1.txt", b"a"), ("1.cls", b"0"), ("2.txt", b"b"), ("2.cls", b"1")])
    write_tar(folder / "1.tar", [("1.txt", b"c"), ("1.cls", b"2")])
    assert [row["cls"] for row in read(folder)] == [0, 1, 2]
    write_tar(tmp_path / "again.tar", [("1.txt", b"a"), ("2.txt", b"b"), ("1.txt", b"c")])
    with pytest.raises(FormatError, match="the key '1' returns after another sample"):
        read(tmp_path / "again.tar")
    write_tar(tmp_path / "twice.tar", [("1.txt", b"a"), ("1.TXT", b"b")])
    with pytest.raises(FormatError, match=r"two members \.txt"):
        read(tmp_path / "twice.tar")


def test_a_sample_that_goes_on_in_the_next_file_is_an_error(tmp_path):
    write_tar(tmp_path / "0.tar", [("1.txt", b"a"), ("1.cls", b"0"), ("2.txt", b"b")])
    write_tar(tmp_path / "1.tar", [("2.cls", b"1")])
    with pytest.raises(FormatError, match=r"0\.tar: its last sample '2' goes on in .*1\.tar"):
        read(tmp_path, missing="null")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("../1.txt", b"x")], "unsafe name"),
        ([("/etc/1.txt", b"x")], "unsafe name"),
        ([(info("1.txt", type=tarfile.SYMTYPE, linkname="/etc/passwd"), b"")], "is a link"),
        ([(info("1.txt", type=tarfile.LNKTYPE, linkname="0.txt"), b"")], "is a link"),
        ([(info("1.txt", type=tarfile.FIFOTYPE), b"")], "no regular file"),
        ([("1.cls", b"one")], "expected the digits"),
        ([("1.txt", b"\xff")], "can't decode"),
        ([("1.npy", b"no array")], "no npy file"),
        ([("1.npy", b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }")], "no npy file"),
    ],
)
def test_a_hostile_or_wrong_member_is_an_error(tmp_path, members, message):
    write_tar(tmp_path / "a.tar", members)
    with pytest.raises((FormatError, SchemaError), match=message):
        read(tmp_path / "a.tar")


def test_a_pickle_stays_bytes(tmp_path):
    write_tar(tmp_path / "a.tar", [("1.pyd", b"cos\nsystem\n(S'false'\ntR.")])
    assert read(tmp_path / "a.tar") == [{"pyd": b"cos\nsystem\n(S'false'\ntR."}]


def test_a_false_size_takes_no_memory_and_is_an_error(tmp_path):
    for size in ((1 << 33) - 1, 1 << 40, (1 << 32) - 1):
        block = info("1.txt", size=size).tobuf(tarfile.GNU_FORMAT)
        (tmp_path / "a.tar").write_bytes(block + b"x" * 512)
        with pytest.raises(
            FormatError, match=r"a\.tar(, member|: member) '1.txt' (is damaged .* cut short|has .* at most)"
        ):
            read(tmp_path / "a.tar")
    extended = info("x", type=tarfile.XHDTYPE, size=1 << 30).tobuf(tarfile.USTAR_FORMAT)
    (tmp_path / "a.tar").write_bytes(extended)
    with pytest.raises(FormatError, match="take more than 1,048,576 bytes"):
        read(tmp_path / "a.tar")


def test_a_file_that_was_cut_or_is_no_tar_is_an_error(tmp_path):
    whole = write_tar(tmp_path / "a.tar", [(f"{n}.txt", b"x" * 700) for n in range(3)]).read_bytes()
    for size in (0, 100, 512, 600, 1536, 2000, 4000):
        (tmp_path / "a.tar").write_bytes(whole[:size])
        with pytest.raises(FormatError, match=r"cut short|no tar"):
            read(tmp_path / "a.tar")
    (tmp_path / "a.tar").write_bytes(b"hello" * 1000)
    with pytest.raises(FormatError, match="damaged or not an archive"):
        read(tmp_path / "a.tar")
    (tmp_path / "a.tar").write_bytes(whole.replace(b"1.txt", b"7.txt"))
    with pytest.raises(FormatError, match="damaged"):
        read(tmp_path / "a.tar")
    write_tar(tmp_path / "a.tar", [])
    with pytest.raises(StoreNotFound, match="no samples"):
        read(tmp_path / "a.tar")


def test_arrays_without_axes_are_numbers(tmp_path):
    contents = []
    for value in (np.float16(0.5), np.float16(2)):
        file = io.BytesIO()
        np.save(file, value)
        contents.append(file.getvalue())
    write_tar(tmp_path / "a.tar", [(f"{n}.x.npy", content) for n, content in enumerate(contents)])
    source = source_of(tmp_path / "a.tar")
    assert source.schema().field("x.npy").type == pa.float16()
    assert [row["x.npy"] for row in rows_of(source)] == [0.5, 2.0]
