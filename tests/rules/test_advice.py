"""What messages advise exists: every option, command, page, extra, variable and class that one names.

All texts of both packages are read, not only those of `raise`: the text of an error is often put together elsewhere.
"""

import ast
import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
from typer.main import get_command

from smalti.cli.app import build_app
from smalti.extras import EXTRA_OF
from smalti.storage.options import RETRY_OPTIONS
from smalti.storage.schemes import SCHEMES

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PACKAGES = ("smalti", "smalti_dagster", "pyspark_mds")
GAP = "…"
"""Stands for a value that is put into a text."""
NO_MESSAGE = re.compile(r"^\s*<|/>|^\n?(import|def|if|raise) |\\[A-Za-z\[(.]|^\[|\w\|\w|^[\w.]+\[.+\]$| DESC$")
"""Parts of pages and pictures, programs that are executed, and regular expressions."""
PAGED = ("smalti/compat/", "smalti_dagster/declaration/", "smalti_dagster/resources/", "smalti_dagster/stages/")
"""Folders whose names are public though no page lists them all: interfaces of other libraries, and of `defs.yaml`."""
PROGRAMS = ("aws", "az", "brew", "docker", "gcloud", "git", "hf", "java", "sudo", "tar", "torchrun", "ulimit")
"""Commands of others, whose options are not checked."""
PROSE = ("smalti holds", "smalti runs")
"""The library as the subject of a sentence, or a key of a manifest."""
KEYS = ("smalti.version",)
"""Keys of a manifest, with the one above them."""
OPTIONS_OF_OTHERS = {"--repo-type": "hf", "--max-restarts": "torchrun", "--path": "a program that is run by the alias"}
PACKAGES_OF_OTHERS = {"tensorflow-cpu": "tensorflow without CUDA, for the extra `tf`"}
VARIABLES_OF_OTHERS = {
    "AWS_CA_BUNDLE": "botocore",
    "AWS_PROFILE": "botocore",
    "CUDA_VISIBLE_DEVICES": "CUDA",
    "DAGSTER_HOME": "dagster",
    "IMREAD_UNCHANGED": "cv2, a constant",
    "MLFLOW_TRACKING_PASSWORD": "mlflow",
    "MLFLOW_TRACKING_TOKEN": "mlflow",
    "MLFLOW_TRACKING_USERNAME": "mlflow",
}
"""Environment variables that only a client library reads."""
ROOTS_OF_OTHERS = ("cv2", "dataframe", "dataset", "df", "frame", "numpy", "pyarrow", "spark", "torch")
"""Libraries, and names that a user's program gives to a DataFrame or a session of Spark."""
NAMES_OF_OTHERS = {
    "allow_pickle": "numpy",
    "class": "Python",
    "data_format": "the index of LitData",
    "data_spec": "the index of LitData",
    "datasets": "a package of Hugging Face",
    "day": "a folder of an example",
    "checked": "the name of a tag",
    "decimal128": "Arrow",
    "def": "Python",
    "exit": "Python",
    "index": "pandas, of to_csv",
    "iter": "Python",
    "len": "Python",
    "type": "Python",
    "lag": "Spark",
    "lead": "Spark",
    "logits": "transformers, of a model's output",
    "max": "Python; the start of `keep_best`",
    "min": "the start of `keep_best`",
    "medium": "Kubernetes",
    "emptyDir": "Kubernetes",
    "new_cluster": "Databricks",
    "node_type_id": "Databricks",
    "partitionBy": "Spark",
    "prefetch_factor": "torch",
    "recursive": "fsspec",
    "reduction": "torch",
    "save_to_disk": "datasets",
    "spark_version": "Databricks",
    "st_asbinary": "Databricks",
    "streaming": "datasets, of load_dataset; MosaicML Streaming",
    "str": "an encoding",
    "to_csv": "pandas",
    "to_json": "Spark",
    "user_id": "a column of an example",
    "variant_get": "Spark",
    "vector_to_array": "Spark",
    "session_kwargs": "gcsfs",
    "max_gap": "fsspec",
    "storage_reachable_job": "a job of Dagster, of the check of this name",
    "webdataset": "a format",
    "window": "an order",
    "world_size": "torch.distributed",
}
CLASSES_OF_OTHERS = {
    "DataFrame", "DataFrames", "DatasetDict", "DeleteMessage", "DeleteObject",
    "ListBucket", "LitData", "NotImplementedError", "PutObject", "PySpark", "PyTorch",
    "ReceiveMessage", "RecordBatch", "StatefulDataLoader", "StreamingDataLoaders",
    "TensorBoard", "TensorFlow", "TorchDistributor", "UnischemaFields", "WebDataset",
}  # fmt: skip
"""Classes of Python and of other libraries, names of products, and rights of AWS."""


@dataclass(frozen=True)
class Text:
    module: str
    line: int
    said: str

    def __str__(self):
        return f"{self.module}:{self.line}: {self.said[:120]}"

    def filled(self, constants):
        """Return the text with the values of constants that are texts."""
        said = re.sub("\0(\\w+)\0", lambda name: constants.get(name[1], GAP), self.said)
        return Text(self.module, self.line, said)


class Module:
    """The texts of a module, and the names that it defines."""

    def __init__(self, path):
        self.name = path.relative_to(SOURCE).as_posix()
        self.tree = ast.parse(path.read_text())
        self.constants, self.strings, self.texts, self.imported = {}, set(), [], set()
        self.listed = set()
        """The names in `__all__`."""
        self.definitions, self.methods = {}, defaultdict(set)
        for node in self.tree.body:
            self._define(node)
        self._read()

    def _define(self, node):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self.definitions[node.name] = Definition(parameters_of(node))
        elif isinstance(node, ast.ClassDef):
            self.definitions[node.name] = Definition.of_class(node)
            for each in node.body:
                if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    self.methods[each.name] |= parameters_of(each)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self.imported |= {each.asname or each.name for each in node.names}
        elif isinstance(node, (ast.If, ast.Try)):
            for each in node.body:
                self._define(each)
        for name, value in assigned(node):
            self.definitions[name] = Definition()
            if name == "__all__" and isinstance(value, (ast.List, ast.Tuple)):
                self.listed = {each.value for each in value.elts if isinstance(each, ast.Constant)}
            elif isinstance(value, ast.Constant) and isinstance(value.value, str):
                self.constants[name] = value.value

    def _read(self):
        left_out = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                left_out.add(id(node.value))
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "cast":
                left_out.add(id(node.args[0]))
            elif isinstance(node, (ast.AnnAssign, ast.arg)):
                left_out.add(id(node.annotation))
            elif isinstance(node, ast.JoinedStr):
                left_out.update(id(part) for part in node.values)
                self._say(node, "".join(map(self._part, node.values)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
                self._say(node, node.value)

    def _part(self, part):
        if isinstance(part, ast.Constant):
            return part.value
        return f"\0{part.value.id}\0" if isinstance(part.value, ast.Name) else GAP

    def _say(self, node, said):
        if " " in said.strip() or "`" in said:
            if not NO_MESSAGE.search(said):
                self.texts.append(Text(self.name, node.lineno, said))
        else:
            self.strings.add(said)


@dataclass
class Definition:
    """The parameters of a function; or those of a class's constructor, its fields, and the names in its body."""

    parameters: set = field(default_factory=set)
    members: set = field(default_factory=set)
    bases: set = field(default_factory=set)

    @classmethod
    def of_class(cls, node):
        made = cls(bases={ast.unparse(each).rpartition(".")[2].partition("[")[0] for each in node.bases})
        for each in node.body:
            if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
                made.members.add(each.name)
                if each.name in ("__init__", "__new__"):
                    made.parameters |= parameters_of(each)
                elif is_public(each.name):
                    made.members |= parameters_of(each)
            for name, _ in assigned(each):
                made.parameters.add(name)
        return made


def parameters_of(function):
    given = function.args
    named = (*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg)))
    return {each.arg for each in named} - {"self", "cls"}


def assigned(node):
    if isinstance(node, ast.AnnAssign):
        yield ast.unparse(node.target), node.value
    elif isinstance(node, ast.Assign):
        yield from ((ast.unparse(each), node.value) for each in node.targets)


def is_public(name):
    return not name.startswith("_") or name.startswith("__")


@cache
def modules():
    found = [Module(path) for package in PACKAGES for path in sorted((SOURCE / package).rglob("*.py"))]
    everywhere = {name: value for module in found for name, value in module.constants.items() if is_public(name)}
    for module in found:
        known = {name: everywhere[name] for name in module.imported & everywhere.keys()} | module.constants
        module.texts = [each.filled(known) for each in module.texts]
    return found


@cache
def definitions():
    found = defaultdict(list)
    for module in modules():
        for name, made in module.definitions.items():
            found[name].append(made)
    return found


def of_bases(name):
    """Yield the definitions of a name and, if it is a class, of its bases."""
    for made in definitions().get(name, ()):
        yield made
        for base in made.bases - {name}:
            yield from of_bases(base)


@cache
def public_names():
    """Return what a user can write: names that a page or `__all__` lists, their parameters, fields and methods."""
    listed = set().union(*(module.listed for module in modules()))
    for page in (ROOT / "docs").rglob("*.md"):
        listed |= {each.rpartition(".")[2] for each in re.findall(r"^::: ([\w.]+)", page.read_text(), re.MULTILINE)}
    for module in modules():
        if module.name.startswith(PAGED):
            listed |= {name for name in module.definitions if is_public(name)}
    names = listed | set(RETRY_OPTIONS)
    for name in listed:
        for made in of_bases(name):
            names |= made.parameters | set(filter(is_public, made.members))
    for scheme in SCHEMES:
        names |= {*scheme.named_options, *scheme.usual_options}
    for flags, _ in commands().values():
        names |= {flag.lstrip("-").replace("-", "_") for flag in flags}
    return names


def parameters(name):
    methods = (module.methods[name] for module in modules() if name in module.methods)
    return set().union(*(made.parameters for made in of_bases(name)), *methods)


@cache
def strings():
    return set().union(*(module.strings for module in modules()))


@cache
def by_name():
    return {module.name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): module for module in modules()}


def commands_of(group, above=""):
    for name, command in group.commands.items():
        yield f"{above}{name}", command
        if hasattr(command, "commands"):
            yield from commands_of(command, f"{above}{name} ")


@cache
def commands():
    """Return the flags of each command, and the module that defines it."""
    found = {}
    for name, command in commands_of(get_command(build_app())):
        flags = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts) if flag.startswith("-")}
        home = getattr(command.callback, "__module__", "").replace(".", "/") + ".py"
        found[name] = flags | {"--help"}, home
    return found


@cache
def project():
    """Return the extras of pyproject.toml, and the packages that they have."""
    content = (ROOT / "pyproject.toml").read_text()
    table = content.partition("[project.optional-dependencies]")[2].partition("\n[project.")[0]
    return set(re.findall(r"^(\w+) = ", table, re.MULTILINE)), set(re.findall(r'"([\w-]+)[\[><=~!]', content))


@cache
def targets():
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@cache
def anchors(page):
    headings = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def pages_in(said):
    """Yield the pages that a text names, and files and targets that only a clone has."""
    for page, anchor in re.findall(r"\b(docs/[\w/-]+\.md)(?:#([\w-]+))?", said):
        path = ROOT / page
        yield f"{page}#{anchor}", path.is_file() and (not anchor or anchor in anchors(path))
    of_clone = r"(?<![\w/])(?:tests|tools|examples|deploy|benchmarks|notebooks|assets)/[\w/]*\.\w+"
    yield from ((name, False) for name in re.findall(of_clone, said))
    yield from ((f"make {name}", False) for name in re.findall(r"\bmake ([a-z][a-z-]+)", said) if name in targets())


def packages_in(said):
    known, packages = project()
    for names in re.findall(r"smalti\[([\w,]+)\]", said):
        yield from ((f"smalti[{name}]", name in known) for name in names.split(","))
    for name in re.findall(r"pip install '?([\w-]+)", said):
        yield f"pip install {name}", name in packages | {"smalti", *PACKAGES_OF_OTHERS}
    for name in re.findall(r"python3? -m ([a-z][\w.]+)", said):
        yield f"python -m {name}", f"{name}.__main__" in by_name()


def commands_in(said, module):
    """Yield commands with their options, and options alone: those of the module's own commands, if it has any."""
    said = re.sub(r"`([^` ]+)[^`]*`", lambda quoted: "" if quoted[1] in PROGRAMS else quoted[0], said)
    for match in re.finditer(r"(?<![\w./-])smalti ([a-z][a-z-]*)(?: ([a-z-]+))?([^`;]*)", said):
        first, second, more = match.groups()
        name = f"{first} {second}" if f"{first} {second}" in commands() else first
        if not match[0].startswith(PROSE):
            yield f"smalti {name}", name in commands()
        if name in commands():
            for flag in flags_in(f"{second or ''}{more}"):
                yield f"smalti {name} {flag}", flag in commands()[name][0]
            said = said.replace(match[0], "")
    own = [flags for flags, home in commands().values() if home == module]
    allowed = set().union(*(own or [flags for flags, _ in commands().values()]), OPTIONS_OF_OTHERS)
    yield from ((flag, flag in allowed) for flag in flags_in(said))


def flags_in(said):
    return re.findall(r"(?<![\w<!-])--[a-z][\w-]*", said)


def variables_in(said):
    for name in re.findall(r"(?<![\w.])[A-Z][A-Z0-9]*_[A-Z0-9_]+\b", said):
        yield name, name in strings() or name in VARIABLES_OF_OTHERS or name in public_names()


def attributes_in(said):
    for name in re.findall(r"(?<![\w/.@])(?:smalti|smalti_dagster|streaming)(?:\.\w+)+", said):
        place = f"smalti.compat.{name}" if name.startswith("streaming.") else name
        yield name, is_attribute(place) or name in strings() or name in KEYS


def is_attribute(name):
    parts = name.split(".")
    at = next(at for at in range(len(parts), 0, -1) if ".".join(parts[:at]) in by_name())
    home, rest = by_name()[".".join(parts[:at])], parts[at:]
    return not rest or rest[0] in {*home.definitions, *home.imported, *home.strings}


def calls_in(said, known):
    """Yield calls, and the arguments in each."""
    for name, arguments in re.findall(r"(?<![\w.])([A-Za-z_][\w.]*)\(((?:[^()]|\([^()]*\))*)\)", said):
        last = name.rpartition(".")[2]
        if (
            name.partition(".")[0] in ROOTS_OF_OTHERS
            or last in NAMES_OF_OTHERS
            or name + "(s)" in said
            or len(last) < 3
        ):
            continue
        yield f"{name}()", last in known
        for keyword in re.findall(r"\b(\w+)=", re.sub(r"\(.*\)", "", arguments)):
            yield f"{name}({keyword}=)", keyword in parameters(last)


def names_in(said, known):
    """Yield arguments with their values, all that stands in backticks, and words with an underscore."""
    value = r"('\w+'|\"\w+\"|True|False|None|\[|\{|\d|…)"
    for name, given in re.findall(rf"(?<![\w.'\"<&?{{/-])([a-z]\w*)={value}", said):
        yield f"{name}={given}", name in known and (given[0] not in "'\"" or given[1:-1] in strings())
    for quoted in re.findall(r"`([\w.]+)(?:: ?\w+)?[`=]", said):
        if quoted.partition(".")[0] not in {*PACKAGES, *ROOTS_OF_OTHERS, "streaming"} and not quoted.isupper():
            yield from ((name, name in known) for name in quoted.split(".") if name.strip("_.") and not name.isdigit())
    outside = re.sub(r"`[^`]*`", "", said)
    for name in re.findall(r"(?<![\w.'\"-])[a-z][a-z0-9]*(?:_[a-z0-9]+)+(?![\w'\"])", outside):
        yield name, name in known or name in PACKAGES


def classes_in(said):
    for name in re.findall(r"(?<![\w.'\"])[A-Z][a-z]+(?:[A-Z][a-z]+)+\b", said):
        yield name, name in CLASSES_OF_OTHERS or name in definitions()


def things_in(text, of_folder):
    """Yield all that a text names, each with whether it exists; `of_folder` are keys and values that its folder has."""
    known = public_names() | of_folder | NAMES_OF_OTHERS.keys()
    yield from pages_in(text.said)
    yield from packages_in(text.said)
    yield from commands_in(text.said, text.module)
    yield from variables_in(text.said)
    yield from attributes_in(text.said)
    yield from calls_in(text.said, known)
    yield from names_in(text.said, known)
    yield from classes_in(text.said)


@cache
def named():
    return [
        (text, thing, exists)
        for module in modules()
        for text in module.texts
        for thing, exists in things_in(text, strings_of(module.name.rpartition("/")[0]))
    ]


@cache
def strings_of(folder):
    return set().union(*(module.strings for module in modules() if module.name.rpartition("/")[0] == folder))


def test_all_that_messages_name_exists():
    assert [f"{thing} in {text}" for text, thing, exists in named() if not exists] == []


def test_all_messages_are_read():
    """Bounds a little below what there is, so that a change which hides messages from this module is seen."""
    assert sum(len(module.texts) for module in modules()) > 3800
    assert len(named()) > 1650
    assert {text.module.partition("/")[0] for text, _, _ in named()} == set(PACKAGES)


def test_extras_that_are_put_into_messages_exist():
    assert {*EXTRA_OF.values(), *(scheme.extra for scheme in SCHEMES if scheme.extra)} <= project()[0]


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("raise `download_timeout`, or give `columns`", []),
        ("raise `fetch_timeout`", ["fetch_timeout"]),
        ("raise fetch_timeout", ["fetch_timeout"]),
        ("give StreamingDataLoader(dataset, batches=8)", ["StreamingDataLoader(batches=)"]),
        ("call new_writer_id()", ["new_writer_id()", "new_writer_id"]),
        ("use worker_kind='process'", []),
        ("use worker_kind='fibre'", ["worker_kind='fibre'"]),
        ("use launch_mode='inline'", ["launch_mode='inline'", "launch_mode"]),
        ("run `smalti verify s3://b/set`", []),
        ("run `smalti check s3://b/set`", ["smalti check"]),
        ("run `smalti vacuum ./set --purge`", ["smalti vacuum --purge"]),
        ("look with --dryrun first", ["--dryrun"]),
        ("pip install 'smalti[spark]'", []),
        ("pip install 'smalti[pyspark,torch]'", ["smalti[pyspark]"]),
        ("python -m smalti.streaming", ["python -m smalti.streaming", "smalti.streaming"]),
        ("set SMALTI_TIMEOUT", ["SMALTI_TIMEOUT"]),
        ("set AWS_REGION", []),
        ("see docs/storage.md", []),
        ("see docs/stores.md", ["docs/stores.md#"]),
        ("see docs/storage.md#nowhere", ["docs/storage.md#nowhere"]),
        ("look at tools/soak.py, or run make soak", ["tools/soak.py", "make soak"]),
        ("use `smalti.merge_index`", []),
        ("use `smalti.catalog.merge_indexes`", ["smalti.catalog.merge_indexes"]),
        ("make a StreamDataset", ["StreamDataset"]),
    ],
)
def test_a_name_that_does_not_exist_is_found(said, wrong):
    assert [thing for thing, exists in things_in(Text("smalti/made.py", 1, said), set()) if not exists] == wrong


def test_what_is_allowed_is_named():
    """So that the lists of others' names do not keep what no message names any more."""
    said = " ".join(text.said for module in modules() for text in module.texts)
    allowed = [*NAMES_OF_OTHERS, *VARIABLES_OF_OTHERS, *OPTIONS_OF_OTHERS, *PACKAGES_OF_OTHERS, *CLASSES_OF_OTHERS]
    assert [name for name in allowed if name not in said] == []
