"""No secret that is given to anything of the library is shown by it: by functions, dataclasses and commands alike.

What is tried comes from the library itself: all schemes, all dataclasses with storage options, all public functions
that take a place or storage options, and all commands.
"""

import ast
import dataclasses
import importlib
import inspect
import io
import logging
import pprint
import re
from pathlib import Path

import pytest

import smalti
from smalti.cli import main
from smalti.redaction import redact_message
from smalti.storage import open_store
from smalti.storage.schemes import SCHEME_BY_NAME, SCHEMES
from tests.cli.test_odd_arguments import ARGUMENTS, COMMANDS, parts_of, word_of
from tests.storage.test_options import ADDRESSES, NEEDED
from tests.storage.test_secrets import CANARY, assert_hidden, everything_shown

OPTIONS = {"key": "AKIDAKID", "secret": CANARY, "client_kwargs": {"aws_session_token": CANARY}}
PLACES = [
    f"s3://user:{CANARY}@bucket/set", f"s3://{CANARY}@bucket/set", f"S3://user:{CANARY}@bucket/set",
    f"s3:/user:{CANARY}@bucket/set", f"s3://bucket/set?X-Amz-Signature={CANARY}", f"https://host/set?x={CANARY}",
    f"hf://{CANARY}@datasets/owner/name", f"https://host/set;token={CANARY}", f"https://host/set#{CANARY}",
    f"foo://user:{CANARY}@host/set", f"foo://{CANARY}@host/set", f"abfs://c@a.dfs.core.windows.net/x?sv=1&sig={CANARY}",
    f"dbfs:/Volumes/a/b/c/x?token={CANARY}", f"file://user:{CANARY}@host/set",
]  # fmt: skip
"""Addresses with a secret, all of which are refused without a request."""
SECRET_NAME = re.compile(
    r"secret|token|password|^key$|account_key|credential|connection_string|external_id|proxy|headers|sas"
)
PUBLIC = [
    "smalti", "smalti.catalog", "smalti.conversion", "smalti.dataset", "smalti.diagnosis", "smalti.exchange",
    "smalti.exporting", "smalti.inspection", "smalti.ledger", "smalti.sources", "smalti.storage", "smalti.stream",
    "smalti.writer", "smalti.spark", "smalti.spark.prepared", "smalti.torch", "smalti.torch.train",
    "smalti.torch.tuning", "smalti.inference", "smalti.compat.petastorm", "smalti.compat.streaming",
]  # fmt: skip
PLACE_NAMES = re.compile(r".*storage_options|place|url|source|target|out|remote|data|run_dir|study_dir|path|.*_url")


@pytest.fixture(autouse=True)
def _records(clean_environment, tmp_path, monkeypatch, caplog):
    """Run in an empty folder, and look at all records of the log afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    caplog.set_level(logging.DEBUG)
    yield
    assert_hidden(caplog.text)


def shown_of(value):
    forms = [repr(value), str(value), pprint.pformat(value), f"{vars(value)}"]
    if dataclasses.is_dataclass(value):
        forms += [repr(dataclasses.asdict(value)), pprint.pformat(dataclasses.asdict(value))]
    return "\n".join(forms)


def sources():
    return {path: path.read_text() for path in sorted(Path(smalti.__path__[0]).rglob("*.py"))}


def modules(having):
    """Import the modules whose source has a text."""
    for path, source in sources().items():
        if having in source:
            parts = path.relative_to(Path(smalti.__path__[0]).parent).with_suffix("").parts
            yield importlib.import_module(".".join(parts).removesuffix(".__init__"))


# ---------------------------------------------------------------------- stores


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_no_store_shows_the_value_of_an_option(scheme):
    names = [name for name in (*scheme.named_options, *scheme.usual_options) if SECRET_NAME.search(name)]
    needed = NEEDED.get(scheme.name, {})
    if scheme.name == "s3":
        needed = {"role_arn": "arn"}
    for name in names:
        value = {"X-Login": CANARY} if name == "headers" else f"http://u:{CANARY}@h:1" if name == "proxy" else CANARY
        store = open_store(ADDRESSES[scheme.name], {**needed, name: value})
        assert_hidden(f"{store!r} {store} {store.url} {store._options!r}")
        with pytest.raises(OSError, match="no storage option") as caught:
            open_store(ADDRESSES[scheme.name], {**needed, name: value, "zzz": CANARY})
        assert_hidden(everything_shown(caught.value))


@pytest.mark.parametrize("option", ["proxy", "endpoint_url", "sts_endpoint_url"])
@pytest.mark.parametrize("url", ["http://u:{}@h:port", "ftp://u:{}@h", "u:{}@h", "http://u:a b{}@h", "http://u:a#{}@h"])
def test_a_malformed_url_of_a_server_is_refused_without_its_password(option, url):
    with pytest.raises(OSError, match="expected http://host:port") as caught:
        open_store("s3://bucket/set", {"role_arn": "arn", option: url.format(CANARY)})
    assert_hidden(everything_shown(caught.value))


# ---------------------------------------------------------------------- dataclasses


def holders():
    for module in modules(having="storage_options:"):
        for kind in vars(module).values():
            if inspect.isclass(kind) and kind.__module__ == module.__name__ and dataclasses.is_dataclass(kind):
                names = [field.name for field in dataclasses.fields(kind) if field.name.endswith("storage_options")]
                if names:
                    yield kind, names


def value_for(field):
    return {"out": "s3://bucket/set", "data": "s3://bucket/set", "run_dir": "run", "remote": "s3://bucket/set"}.get(
        field.name, () if "tuple" in str(field.type) else "text"
    )


@pytest.mark.slow
def test_no_dataclass_with_storage_options_shows_their_values():
    tried = []
    for kind, names in holders():
        required = {
            field.name: value_for(field)
            for field in dataclasses.fields(kind)
            if field.init and field.default is field.default_factory is dataclasses.MISSING
        }
        if kind.__name__ == "Stream":
            required["remote"] = "s3://bucket/set"
        value = kind(**{**required, **{name: dict(OPTIONS) for name in names}})
        assert_hidden(repr(value) + str(value) + pprint.pformat(value) + repr(vars(value)))
        if kind.__name__ not in ("RunConfig", "TrainConfig"):  # hold views of their options, which cannot be copied
            assert_hidden(shown_of(value))
        assert dict(getattr(value, names[0])) == OPTIONS, "the options themselves are whole"
        tried.append(kind.__name__)
    assert {"SourceOptions", "Stream", "StreamOptions", "WriteOptions", "WriterOptions", "ImageFolder", "RunConfig",
            "TrainConfig", "StudyOptions"} <= {*tried}  # fmt: skip


# ---------------------------------------------------------------------- functions


def callables():
    for package in PUBLIC:
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", ()):
            function = getattr(module, name)
            if inspect.isroutine(function) or (inspect.isclass(function) and not dataclasses.is_dataclass(function)):
                try:
                    parameters = inspect.signature(function).parameters
                except (TypeError, ValueError):
                    continue
                if places := [text for text in parameters if PLACE_NAMES.fullmatch(text)]:
                    yield f"{package}.{name}", function, parameters, places


def arguments_for(parameters, places, address):
    """Return arguments for a call: the address for places, options with a misspelt one, and text for what is needed."""
    arguments = {}
    for name, each in parameters.items():
        if name.endswith("storage_options"):
            arguments[name] = {**OPTIONS, "zzz": CANARY}
        elif name in places:
            arguments[name] = address
        elif each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            arguments[name] = "text"
    return arguments


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_no_public_function_shows_a_secret_of_its_arguments(step):
    """Each function gets every fourth place, and all of them in the nightly run."""
    shown, tried = {}, set()
    for number, (name, function, parameters, places) in enumerate(callables()):
        for address in PLACES[number % step :: step]:
            arguments = arguments_for(parameters, places, address)
            first = [arguments.pop(text) for text, each in parameters.items() if each.kind is each.POSITIONAL_ONLY]
            try:
                said = repr(function(*first, **arguments))
            except Exception as error:
                said = messages_of(error)  # and not its frames, which are those of this test
                tried.add(name)
            if CANARY in said:
                shown.setdefault(name, said[:500])
    assert shown == {}
    assert len(tried) > 30


def messages_of(error):
    shown, seen = [], set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        shown += [str(error), repr(error), repr(error.args), repr(getattr(error, "facts", ""))]
        error = error.__cause__ or error.__context__
    return "\n".join(shown)


# ---------------------------------------------------------------------- commands


def secret_lines(name):
    arguments, options = parts_of(name)
    words = [ARGUMENTS.get(each.name, "1") for each in arguments]
    needed = [text for each in options if each.required for text in (word_of(each), "1")]
    for place in range(len(words)):
        for number, address in enumerate(PLACES):
            if name == "show" or number % 4 == (len(name) + place) % 4:  # all of them, over all commands
                yield [*name.split(), *needed, *words[:place], address, *words[place + 1 :]]
    for pairs in (word_of(each) for each in options if word_of(each).endswith("-option")):
        words = [
            "s3://bucket/set" if each.name in ("url", "source", "target") else word
            for each, word in zip(arguments, words, strict=True)
        ]
        for text in (
            f"secret:{CANARY}",
            CANARY,
            f'client_kwargs={{"a": "{CANARY}"',
            f"zzz={CANARY}",
            f"proxy=u:{CANARY}@h",
        ):
            yield [*name.split(), *needed, *words, pairs, text]
        yield [*name.split(), *needed, *words, "--endpoint-url", f"http://u:{CANARY}@h:port"]
    yield [*name.split(), *needed, *words, f"https://host/x?sig={CANARY}"]
    yield [*name.split(), f"--password={CANARY}"]
    yield [*name.split(), f"--storage-option:secret={CANARY}"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_shows_a_secret_of_its_arguments(name, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    for line in secret_lines(name):
        status = main(line)
        printed = capsys.readouterr()
        assert_hidden(printed.out + printed.err)
        assert "Traceback" not in printed.err
        assert status in (1, 2) or name in ("doctor", "plan"), line


# ---------------------------------------------------------------------- the mechanism


@pytest.mark.slow
def test_redaction_changes_no_message_of_the_library():
    """Advice such as `token='anon'` stays readable."""
    texts = set()
    for source in sources().values():
        tree = ast.parse(source)
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                texts.add(node.value)
    changed = {text for text in texts if " " in text and redact_message(text) != text}
    assert changed == set()


def test_every_scheme_that_takes_a_login_is_known_to_redaction():
    for name, scheme in SCHEME_BY_NAME.items():
        masked = CANARY not in redact_message(f"{name}://{CANARY}@host/set")
        assert masked != scheme.allows_at_sign
