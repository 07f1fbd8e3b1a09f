"""Law of bad input: one line on stderr that names what is wrong, exit code 2, and nothing written."""

from pathlib import Path

# ruff: noqa: E501 - the messages under test are single lines
import pytest

from tests.cli.conftest import Cli

_NAMES = (
    "none, never_save, full, partial, cpr_vanilla, cpr_random, cpr_mfu, cpr_ssu, cpr_mass, cpr_scar, cpr_mirror, "
    "differential, buddy"
)
_LOG = "node,start,end\na1,2,3\na2,10,9\na10,12,20\na2,12,13\na1,30,31.5\na3,44,\na3,55,56\n"
_IMPORT = "trace import jobs.csv --out out.csv"
_INTERVALS = f"{_IMPORT} format=intervals unit=h"
_GENERATE = "trace generate --out out.csv"

ERRORS: list[tuple[str, str]] = [
    # keys
    ("train one.yaml strategy.interval_sample=3", "unknown key strategy.interval_sample; did you mean strategy.interval_samples? (strategy.interval_sample=3 on the command line)"),
    ("grid grid.yaml strategy.name=[none,bogus]", f"strategy.name: 'bogus' is not one of {_NAMES} (strategy.name=[none,bogus] on the command line)"),
    ("train one.yaml resume.every_s=-1", "resume.every_s"),
    # commands, options and choices
    ("trian one.yaml", "did you mean train?"),
    ("table out --format latx", "--format: unknown 'latx'; did you mean latex?"),
    ("train", "error: the following arguments are required: CONFIG.yaml (see `run.py train --help`)"),
    ("trace import", "required: FILE, --out (see `run.py trace import --help`)"),
    ("train one.yaml --fast", "unknown argument --fast"),
    ("train one.yaml --afrsh", "unknown argument --afrsh; did you mean --afresh?"),
    ("train one.yaml --seed 3", "unknown argument --seed; did you mean seed=…?"),
    ("train one.yaml --learning-rate=3", "unknown argument --learning-rate=3; did you mean trainer.learning_rate=…?"),
    ("train one.yaml --grace -1", "--grace"),
    ("train one.yaml --grace soon", "--grace"),
    ("grid grid.yaml --parallel none", "argument --parallel: invalid whole number >= 1 value: 'none' (see `run.py grid --help`)"),
    ("train one.yaml plugins=\udcff", "plugins=\\udcff on the command line:1: not YAML: invalid Unicode character"),
    # files and folders
    ("train two.yaml", "two.yaml: no such file"),
    ("train oen.yaml", "oen.yaml: no such file; did you mean one.yaml?"),
    ("train grid.yaml", "grid.yaml: expected one configuration, got `grids:`; run it by `run.py grid grid.yaml`"),
    ("grid grid.yaml data.path=nowhere", "nowhere"),
    ("data prepare nowhere.tsv --out made", "nowhere.tsv"),
    ("data info nowhere", "nowhere"),
    ("data prepare jobs.csv --out made --format csv", "--schema: expected a YAML file with --format csv, and only then, got none"),
    ("data prepare jobs.csv --out made --schema one.yaml", "--schema: expected a YAML file with --format csv, and only then, got one.yaml with --format criteo"),
    ("data prepare jobs.csv --out made --format csv --schema nowhere.yaml", "nowhere.yaml: no such file"),
    ("data prepare jobs.csv --out made --format csv --schema one.yaml", "one.yaml:1: unknown key out, expected separator, header, label, "),
    ("data prepare jobs.csv --out made --format avazu --table-rows 1", "--table-rows: expected --format criteo, whose tables have Kaggle's sizes, got avazu"),
    ("data prepare jobs.csv --out made --format avazu", "jobs.csv:1: expected a header with the column click, got 'node, start, end'"),
    ("data prepare jobs.csv --out made --format avzu", "--format: unknown 'avzu'; did you mean avazu?"),
    *((f"{command}{path}", f"{path}: expected {expected}")
      for command in ("train one.yaml out=", "train one.yaml data.path=", "train one.yaml plugins=", "train one.yaml trace.law.trace=",
                      "data info ", "data synth --rows 9 --out=", "plan ", f"{_GENERATE} trace.law.trace=")
      for path, expected in (("~no_user/x", "a user of this machine, got ~no_user; ./~no_user is a file's name"),
                             ("$UNSET/x", "an environment variable that is set, got $UNSET"))),
    ("show nowhere", "nowhere"),
    ("report nowhere", "nowhere"),
    ("reproduce pls --page one.yaml", "--page: expected a file that ends in .md, got one.yaml"),
    ("train one.yaml out=data", "data: expected an empty or a run folder, got other files; set out to another folder"),
    ("grid grid.yaml out=data strategy.name=none seed=0", "data: expected an empty or a grid's folder (with grid.yaml), got other files (meta.json); set out to another folder"),
    *((f"{command} out=file/below", "Not a directory") for command in ("train one.yaml", "grid grid.yaml", "verify one.yaml")),
    *((f"{command} out={'x' * 300}", "File name too long") for command in ("train one.yaml", "grid grid.yaml", "verify one.yaml")),
    # what does not go together
    ("plan cpr56 trace.clock=wall save.mode=async", "trace.clock: expected samples with save.mode=async, got wall"),
    ("plan cpr56 strategy.name=cpr_mirror cache.mode=stale", "cache.mode: expected none or lookahead for strategy"),
    ("plan cpr56 strategy.name=differential strategy.bits=4 trainer.optimizer=adagrad", "trainer.optimizer: expected sgd for saves with rounded values (differential), got adagrad"),
    ("plan cpr56 strategy.name=buddy cluster.num_ps=1", "strategy.name: buddy needs cluster.num_ps >= 2, got 1"),
    # jobs of a scheduler
    *((f"grid grid.yaml --scheduler {name} --parallel 2", f"--parallel: expected --scheduler none; the key jobs.max_parallel limits the jobs of {name}") for name in ("slurm", "ray")),
    ("grid grid.yaml --scheduler ray --print-script", "--print-script: expected --scheduler slurm, got ray, which submits no script"),
    ("grid grid.yaml --print-script", "--print-script: expected --scheduler slurm, got none, which submits no script"),
    ("grid grid.yaml --scheduler slurm jobs.minutes=0", "jobs.minutes: 0 is not a whole number >= 1 (jobs.minutes=0 on the command line)"),
    # traces
    ("trace import nowhere.csv --out out.csv format=lanl", "nowhere.csv"),
    (_IMPORT, "format: expected one of infinitehbd, lanl"),
    (f"{_IMPORT} format=lanl unit=h", "format=lanl: expected one of its options (system, censored), got unit"),
    (f"{_IMPORT} format=intervals unit=y", "unit: expected one of ms, s, m, h, d, got 'y'"),
    (f"{_IMPORT} format=lanl windw=densest", "unknown key windw; did you mean window?"),
    (f"{_IMPORT} format=intervals densest", "densest: expected key=value"),
    (f"{_INTERVALS} window=densest", "window=densest: expected length_h=HOURS"),
    (f"{_INTERVALS} window=densest length_h=1e-9", "the length of jobs.csv, got 1e-09"),
    (f"{_INTERVALS} stretch_h=1e-300", "stretch_h: expected a number >= 0.01 and <= 1000000000, got '1e-300'"),
    (f"{_INTERVALS} from=soon", "from: expected hours since the log begins, or a date like 2026-01-31T06:00, got 'soon'"),
    (f"{_INTERVALS} ranks=99999999", "ranks: expected a whole number >= 1 and <= 1000000, got '99999999'"),
    (f"{_INTERVALS} num_nodes=1", "num_nodes: expected at least the 4 that the log names, got 1"),
    (f"{_INTERVALS} keep_rate=2 ranks=1", "keep_rate, ranks: expected one number of ranks, got 2 and 1"),
    (f"{_INTERVALS} hosts=2 ranks=1", "hosts: expected neither ranks nor keep_rate: "),
    (_GENERATE, "trace.law: expected the law of the trace, such as trace.law=exponential, got none"),
    (f"{_GENERATE} trace.law.mtbfh=5", "unknown key trace.law.mtbfh; did you mean trace.law.mtbf_h?"),
    (f"{_GENERATE} trace.law.mtbf_h=5 trace.law.mtbf_h=6", "trace.law.mtbf_h is already given at trace.law.mtbf_h=5; keep one"),
    (f"{_GENERATE} trace.law.number=few", "trace.law.number: 'few' is not a whole number >= 1 and <= 10000 or null (trace.law.number=few on the command line)"),
    (f"{_GENERATE} trace.law=llama", "trace.law: 'llama' is not one of exponential, "),
    (f"{_GENERATE} trace.law.model=fit trace.law.trace=missing.csv", "missing.csv: expected a failure trace (CSV), got no such file"),
    (f"{_GENERATE} trace.law.group_sizes=two", "trace.law.group_sizes: 'two' is not a list whose items are each a list"),
    (f"{_GENERATE} trace.law.model=fixed trace.law.number=2 --typical", "--typical: expected a law of gaps, got model fixed"),
]  # fmt: skip
"""Arguments, and what the line must name."""


@pytest.mark.parametrize(("words", "message"), ERRORS)
def test_bad_input_is_one_line_and_nothing_written(cli: Cli, words: str, message: str) -> None:
    """Notes may come before the line, and the needs of a grid unless it is refused for its folder."""
    Path("jobs.csv").write_text(_LOG)
    Path("file").write_text("")
    before = cli.files()
    result = cli(*words.split())
    assert (result.code, result.out) == (2, "")
    (line,) = [line for line in result.errors if line.startswith("error: ")]
    assert message in line
    if words.startswith("grid ") and "out=" in words:
        assert not [line for line in result.errors if line.startswith("needs: ")]
    assert cli.files() == before
