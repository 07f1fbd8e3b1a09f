#!/usr/bin/env python3
"""The command line: parses arguments and returns the exit code. The commands are in harness/cli/commands.py.

Exit codes: 0 success, also of a table or report that names damaged cells and leaves them out; 1 a run, a cell or a
comparison failed; 2 bad input, one line on stderr; 130, 143, 129 interrupted, terminated, hung up (128 + number of the
signal).
"""

import gc
import sys
from collections.abc import Sequence
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 - refused here in one line, before an import fails with many
    sys.exit("Python 3.11 or newer is needed, got %d.%d" % sys.version_info[:2])  # noqa: UP031

gc.set_threshold(50_000, 20, 20)  # all objects of an import stay, and a step leaves no garbage
try:
    from harness.cli import interrupts
except KeyboardInterrupt:  # no signal is handled yet
    sys.stderr.write("interrupted; nothing was done yet\n")
    sys.exit(130)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command in ``arguments`` and return the exit code. None: the arguments of this process.

    With None, SIGINT, SIGTERM and SIGHUP are handled from now on. Raises SystemExit: code 2 for an invalid command
    line or a plugin that cannot be loaded, code 0 after ``--help``.
    """
    if arguments is None:
        interrupts.install()
    from harness.cli.arguments import parser as make_parser  # noqa: PLC0415 - imports may be interrupted
    from harness.config.plugins import requested  # noqa: PLC0415

    parser = make_parser()
    options, rest = parser.parse_known_args(arguments)
    after: list[str] | None = next((getattr(options, name) for name in ("overrides", "words") if name in options), None)
    if after is not None and not any(word.startswith("-") for word in rest):
        after += rest  # overrides after an option
    elif rest:
        parser.error(parser.unknown(next((word for word in rest if word.startswith("-")), rest[0]), options.command))
    words: list[str] = getattr(options, "words", [])
    given = getattr(options, "config", None)
    paths = [given] if isinstance(given, Path) else [Path(word) for word in words if word.endswith((".yaml", ".yml"))]
    if isinstance(folder := getattr(options, "run", None), Path):  # whose config names plugins
        paths.append(folder / "config.yaml")
    if names := requested(paths, getattr(options, "overrides", words)):
        from harness.api import load_plugins  # noqa: PLC0415
        from harness.core.errors import ConfigError  # noqa: PLC0415
        from harness.sources import fix_modules  # noqa: PLC0415

        try:
            load_plugins(names)
            fix_modules()
        except ConfigError as error:
            parser.error(str(error))
    from harness.cli import commands  # noqa: PLC0415 - imports pydantic, which `--help` does not need

    return commands.run(options, sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    code = main()
    gc.freeze()  # or the interpreter's end looks for garbage in all that was imported, for some 0.7 s
    sys.exit(code)
