"""Run a program with `streaming` registered: `python -m smalti.compat.streaming script.py ...`, or `-m module ...`."""

import os
import sys
from typing import NoReturn

from smalti.compat.streaming.alias import FOLDER, python_path

USAGE = """\
usage: python -m smalti.compat.streaming SCRIPT [ARGUMENT...]
       python -m smalti.compat.streaming -m MODULE [ARGUMENT...]
       python -m smalti.compat.streaming -c CODE [ARGUMENT...]
       python -m smalti.compat.streaming --path

Run a program in which `import streaming` gives smalti.compat.streaming, also in the processes that it starts.
--path prints a folder that does the same for any program when it is the first of PYTHONPATH.
"""


def main() -> NoReturn:
    """Replace this process by the program."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["--path"]:
        sys.stdout.write(f"{FOLDER}\n")
        sys.exit()
    if arguments[:1] in [["-h"], ["--help"]]:
        sys.stdout.write(USAGE)
        sys.exit()
    if not arguments or (arguments[0].startswith("-") and (arguments[0] not in {"-m", "-c"} or len(arguments) < 2)):
        sys.exit(USAGE)
    if sys.flags.ignore_environment:
        sys.exit(
            "python -m smalti.compat.streaming passes the alias on in PYTHONPATH, which -E and -I ignore: omit them"
        )
    environment = {**os.environ, "PYTHONPATH": python_path(os.environ.get("PYTHONPATH"))}
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *_interpreter_options(), *arguments], environment)  # noqa: S606


def _interpreter_options() -> list[str]:
    """Return the options with which Python itself was started, such as -u and -W, without the last one, our `-m`."""
    options = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]
    return options[:-2] if options[-1] == "smalti.compat.streaming" else options[:-1]


if __name__ == "__main__":
    main()
