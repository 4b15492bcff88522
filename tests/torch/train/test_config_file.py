"""Training configurations in YAML: values, overrides, and faults that name the line."""

import os
import subprocess
import sys

import pytest

from smalti.errors import SchemaError, SmaltiError
from smalti.torch.train import read_config

GOOD = "data: ./set\nrun_dir: runs/7\n"


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text):
        (tmp_path / "c.yaml").write_text(text)
        return "c.yaml"

    return write


def test_keys_are_the_fields_of_the_configuration(written):
    config = read_config(
        written(
            GOOD + "epochs: 3\nlearning_rate: 4e-3\nfreeze: [stem, blocks.0]\nweights: null\n"
            "task: m:T\ntask_options:\n  a: [1]\n"
        )
    )
    assert (config.data, config.run_dir, config.epochs) == ("./set", "runs/7", 3)
    assert config.learning_rate == 0.004, "YAML 1.1 takes 4e-3 for text"
    assert (config.freeze, config.weights, dict(config.task_options)) == (("stem", "blocks.0"), None, {"a": [1]})


def test_a_number_that_yaml_takes_for_text_is_one_in_the_options_of_a_task_too(written):
    config = read_config(written(GOOD + "task_options: {label_smoothing: 1e-2}\n"))
    assert dict(config.task_options) == {"label_smoothing": 0.01}


def test_overrides_replace_values_and_single_options(written):
    path = written(GOOD + "epochs: 3\ntask: m:T\ntask_options: {a: 1, b: 2}\n")
    config = read_config(path, ["epochs=4", "task_options.b=[x]", "freeze=[stem]", "train_split=null"])
    assert (config.epochs, dict(config.task_options)) == (4, {"a": 1, "b": ["x"]})
    assert (config.freeze, config.train_split) == (("stem",), None)


def test_storage_options_are_added_to_those_of_the_file(written):
    config = read_config(written(GOOD + "storage_options: {a: 1, b: 2}\n"), storage_options={"b": 3})
    assert dict(config.storage_options) == {"a": 1, "b": 3}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD + "\nepoch: 3\n", "c.yaml, line 4: unknown key `epoch`. Did you mean `epochs`?"),
        (GOOD + "zzz: 3\n", "c.yaml, line 3: unknown key `zzz`. The keys are the fields of"),
        (GOOD + "epoch: 3\nlaunchr: x\n", "line 4: unknown key `launchr`. Did you mean `launcher`?"),
        (GOOD + "launcher: proceses\n", "c.yaml, line 3: `launcher` must be one of inline, processes, "
                                        "spark-local, spark, not 'proceses'. Did you mean `processes`?"),
        (GOOD + "epochs: five\n", "c.yaml, line 3: `epochs` must be a whole number, not 'five'"),
        (GOOD + "epochs: 0\n", "c.yaml, line 3: `epochs` must be at least 1, not 0"),
        (GOOD + "epochs: true\n", "must be a whole number, not True"),
        (GOOD + "log_samples: 1\n", "`log_samples` must be True or False, not 1"),
        (GOOD + "freeze: stem\n", "`freeze` must be a list, each text, not 'stem'"),
        (GOOD + "version: new\n", "`version` must be a whole number or null, not 'new'"),
        (GOOD + "task_options: 3\n", "`task_options` must be a mapping of options, not 3"),
        (GOOD + "task_options: {augment: 1}\n", "c.yaml, line 3: `task_options` of the task 'image-classification': "
                                                "`augment` must be True or False, not 1."),
        (GOOD + "num_classes: 3\n", "c.yaml, line 3: unknown key `num_classes`. `num_classes` is an option of the task "
                                    "'image-classification': it belongs in `task_options`."),
        (GOOD + "num_processes: 2\n", "c.yaml, line 3: `num_processes` must be 1 with launcher='inline'"),
        (GOOD + "data: other\n", "c.yaml, line 3: `data` is there twice, also in c.yaml, line 1"),
        ("data: ./set\n", "c.yaml: required keys are missing; add `run_dir: ...`"),
        ("", "c.yaml: expected lines `key: value` of a training configuration, found nothing"),
        ("- data\n", "found a list"),
        ("data: [1\nb: 2", "c.yaml, line 2, column 2: not YAML"),
    ],
    ids=lambda value: value[-30:],
)  # fmt: skip
def test_faults_name_the_line_the_key_and_near_names(written, text, said):
    with pytest.raises(SchemaError) as fault:
        read_config(written(text))
    assert said in str(fault.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD + "null: 1\n", "c.yaml, line 3: expected a key that is a name, found a value of the type `null`"),
        (GOOD + "yes: 1\n", "c.yaml, line 3: expected a key that is a name, found a value of the type `bool`"),
        (GOOD + "? [a]\n: 1\n", "c.yaml, line 3, column 3: not YAML: found unhashable key"),
        (GOOD + "epochs: &a 3\nbatch_size: *a\n", "c.yaml: in line 4, `*a` repeats a value; write the value itself"),
        (GOOD + "freeze: &a [*a]\n", "c.yaml: in line 3, `*a` repeats a value"),
        (GOOD + "freeze: " + "[" * 50_000, "c.yaml: in line 3, values are nested more than 20 deep"),
        (GOOD + "seed: 2020-13-45\n", "c.yaml: a value cannot be read: month must be in 1..12"),
        (GOOD + "seed: !!python/object/apply:os.system [ls]\n", "not YAML: could not determine a constructor"),
        (GOOD + "storage_options: secret=S3CRET\n", "`storage_options` must be a mapping of options, not str"),
        ("data: s3://u:S3CRET@b/set\nrun_dir: r\n", "no password, signature or token in an address"),
        ("x" * (1 << 20) + "y", "c.yaml: larger than 1,048,576 bytes"),
    ],
    ids=lambda value: value[-30:],
)
def test_odd_yaml_is_one_clear_message_without_its_secrets(written, text, said):
    with pytest.raises(SmaltiError) as fault:
        read_config(written(text))
    assert said in str(fault.value)
    assert "S3CRET" not in str(fault.value)


def test_a_file_that_is_no_text_or_no_file_is_refused(written, tmp_path):
    (tmp_path / "latin1.yaml").write_bytes(b"data: caf\xe9\n")
    with pytest.raises(SchemaError, match=r"latin1.yaml: byte 9 is not UTF-8"):
        read_config("latin1.yaml")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SmaltiError, match="pipe is a named pipe"):
        read_config("pipe")
    with pytest.raises(SchemaError, match=r"s3://\*\*\*@bucket/c.yaml: a configuration is a file of this machine"):
        read_config("s3://user:S3CRET@bucket/c.yaml")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("epochs", "--set epochs: expected key=value, such as epochs=3"),
        ("epochs:3", "--set epochs: expected key=value, such as epochs=3"),
        ("s3cret", "--set: expected key=value, such as epochs=3"),
        ("epochs=" + "[" * 50_000, "--set epochs: in line 1, values are nested more than 20 deep"),
        ("epoch=3", "--set epoch: unknown key `epoch`. Did you mean `epochs`?"),
        ("epochs=x", "--set epochs: `epochs` must be a whole number, not 'x'"),
        ("epochs.a=3", "--set epochs.a: `epochs` has no options"),
        ("freeze=[a", "--set freeze: not YAML"),
        (f"seed={10**30}", f"--set seed: `seed` must be a number of at most 64 bits, and not infinite, not {10**30}"),
        ("batch_size=20000000", "--set batch_size: `batch_size` must be at most 16,777,216, not 20000000"),
        (
            "clip_norm=.inf",
            "--set clip_norm: `clip_norm` must be a number of at most 64 bits, and not infinite, not inf",
        ),
    ],
)
def test_faults_of_overrides_name_them(written, override, said):
    with pytest.raises(SchemaError) as fault:
        read_config(written(GOOD), [override])
    assert str(fault.value).startswith(said)


def test_a_configuration_is_read_without_torch(written):
    code = f"import sys; from smalti.torch.train import read_config; read_config({written(GOOD)!r}); " \
           "raise SystemExit('torch' in sys.modules)"  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], timeout=500, check=False).returncode == 0


@pytest.mark.parametrize(
    "text",
    [
        "0x10: 3\n", "yes: 1\n", "~: 1\n", "2001-1-1: 1\n", "? [a]\n: 1\n", "? {a: 1}\n: 1\n", "? 2020-99-99\n: 1\n",
        "epochs: 2020-99-99\n", "<<: {epochs: 3}\nepoch: 1\n", "epochs: " + "[" * 5_000,
        "epochs: !!python/object:os.x []\n",
        "a: &a [x]\nb: &b [*a, *a]\nepochs: [*b, *b]\n", "epochs: &x [*x]\n", "storage_options: secret\n", "\0",
        "a\tb: [\n",
        "optimizer_options: {1: 2}\n", "milestones: [a]\n", "batch_size: 1" + "0" * 5_000, "learning_rate: .nan\n",
        "run_storage_options: [secret]\n", "task_options: {a: .inf}\n", "freeze: [[1]]\n", "epochs: 1e400\n",
    ],
)  # fmt: skip
def test_odd_yaml_is_an_error_that_names_the_file(written, text):
    path = written(GOOD + text)
    with pytest.raises(SchemaError) as fault:
        read_config(path)
    assert "c.yaml" in str(fault.value)
    assert len(str(fault.value)) < 2_000
    assert "secret" not in str(fault.value)


def test_a_file_that_is_not_text_is_named(tmp_path):
    (tmp_path / "c.yaml").write_bytes(b"\xff\xfe\x00a")
    with pytest.raises(SchemaError, match=r"c\.yaml: byte 0 is not UTF-8"):
        read_config(tmp_path / "c.yaml")


def test_options_for_a_field_that_is_no_mapping_are_refused(written):
    path = written(GOOD + "task_options: 3\n")
    with pytest.raises(SchemaError, match="`task_options` must be a mapping"):
        read_config(path, ["task_options.a=1"])
    with pytest.raises(SchemaError, match="`task_options` must be a mapping"):
        read_config(path, storage_options={"b": 3})
