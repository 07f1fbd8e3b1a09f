"""Laws of configuration files, overrides and experiment grids."""

# ruff: noqa: E501 - the messages under test are single lines

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.config.experiment import Experiment, load_config, load_each, load_experiment
from harness.config.keys import IRRELEVANT, group_keys, leaf_keys, unknown
from harness.config.model import Config, TraceConfig
from harness.config.settings import read_argument
from harness.config.yaml_file import to_yaml
from harness.core.errors import ConfigError
from harness.core.strategies import options_of

Write = Callable[[str], Path]

GRID = """\
name: quick
out: demo/q
profile: busy
grids:
  - engine: [local]
    strategy.name: [none, full]
    seed: [0, 1]
  - {engine: rpc, strategy: {name: [full]}, seed: 0, cluster.num_ps: 2}
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a file named x.yaml in the current folder."""
    monkeypatch.chdir(tmp_path)

    def write_text(text: str) -> Path:
        Path("x.yaml").write_text(text)
        return Path("x.yaml")

    return write_text


def hash_of(config: Config) -> str:
    """Stands in for run_spec.cell_hash, which needs data and a trace on disk."""
    return hashlib.sha256(config.model_dump_json(exclude={"out", "name"}).encode()).hexdigest()[:10]


def experiment_of(path: Path, *overrides: str) -> Experiment:
    """The experiment, hashed by :func:`hash_of`."""
    return load_experiment(path, overrides, cell_hash=hash_of)


def slugs(experiment: Experiment) -> list[str]:
    """Slugs in order."""
    return [cell.slug for cell in experiment.cells]


def test_values_of_file_and_command_line(write: Write) -> None:
    """Law: an override wins over the file, the file over the default, and numbers read as YAML 1.2 reads them."""
    path = write("seed: 3\ntrainer: {learning_rate: 1e-3, batch_size: 64}\ndata.path: 010\n# a comment\nmodel:\n")
    with pytest.raises(ConfigError, match=r"x.yaml:3: data.path: 10 is not text"):
        load_config(path)
    path = write("seed: 3\ntrainer: {learning_rate: 1e-3, batch_size: 64}\nwandb.mode: disabled\nmodel:\n")
    config = load_config(path, ["trainer.batch_size=32", "model.bottom_mlp=[64,16]", "eval.every_steps="])
    assert (config.seed, config.trainer.learning_rate, config.trainer.batch_size) == (3, 0.001, 32)
    assert (config.model.model_dump()["bottom_mlp"], config.eval.every_steps, config.wandb.mode) == (
        (64, 16),
        None,
        "disabled",
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("~", None), ("", None), ("null", None), ("true", True), ("False", False), ("010", 10), ("08", 8), ("+3", 3), ("1e-3", 0.001),
        (".5", 0.5), ("3.", 3.0), ("yes", "yes"), ("no", "no"), ("on", "on"), ("off", "off"), ("0o17", "0o17"), ("0x1F", "0x1F"),
        ("1_000", "1_000"), ("1:30", "1:30"), ("2021-01-01", "2021-01-01"), (".inf", ".inf"), ("nan", "nan"), ("1e999", "1e999"),
        ("'1'", "1"), ('"true"', "true"), ("[1, [a, 2.5]]", [1, ["a", 2.5]]), ("{a: 1, b: ~}", {"a": 1, "b": None}), ("=", "="),
    ],
)  # fmt: skip
def test_plain_values(text: str, value: object) -> None:
    """Law: decimal numbers, true, false and null; all else is text, also where YAML 1.1 or a library reads more."""
    assert [(type(s.value), s.value) for s in read_argument(f"seed={text}")] == [(type(value), value)]


def test_aliases_are_their_anchors(write: Write) -> None:
    """Law: an alias stands for its value; a value that contains itself is refused in one line."""
    experiment = experiment_of(write("grids:\n- seed: &seeds [0, 1]\n- seed: *seeds\n  engine: rpc\n"))
    assert slugs(experiment) == ["local-full-seed0", "local-full-seed1", "rpc-full-seed0", "rpc-full-seed1"]
    for text in ("seed: &x [*x]", "data: &x {path: *x}"):
        with pytest.raises(ConfigError, match=r"^x.yaml:1: .*unsupported YAML value"):
            load_config(write(text))


def test_name_and_out_default_to_the_file(write: Write) -> None:
    """Law: two files without `out` never write into one folder."""
    config = load_config(write("seed: 1"))
    assert (config.name, config.out) == ("x", "runs/x")


def test_profile_constants_change_one_at_a_time(write: Write) -> None:
    """Law: profile.KEY on the command line changes that constant of the file's profile and no other."""
    busy = load_config(write("profile: busy")).profile
    changed = load_config(write("profile: busy"), ["profile.mtbf_h=3"]).profile
    assert changed.mtbf_h == 3
    assert changed.model_copy(update={"mtbf_h": busy.mtbf_h, "name": busy.name}) == busy


def test_keys_of_a_law_are_axes_and_join_the_files(write: Write) -> None:
    """Law: a dotted key changes one key of the file's law, a name replaces them all, null is no law.

    Mappings are values of an axis; cells are named by their laws.
    """
    path = write("trace: {law: {model: fixed, number: 5}}")
    laws = [load_config(path, words).trace.law for words in ((), ["trace.law.within_h=7"], ["trace.law=llama3"])]
    assert [law and law.name for law in laws] == ["fixed5", "fixed5_within7", "llama3"]
    assert load_config(path, ["trace.law="]).trace.law is None
    anew = load_config(path, ["trace.law=", "trace.law.model=at", "trace.law.hours=[7,14]"]).trace.law
    assert anew is not None
    assert anew.hours == (7, 14)
    axes = ("trace.law=[spot_p3,{model: weibull, shape: 0.7}]", "trace.law.mtbf_h=[3,4]")
    cells = slugs(experiment_of(write("strategy: {name: full}"), *axes))
    assert cells == [f"local-full-seed0-{law}_mtbf{h}" for law in ("spot_p3", "weibull_shape0.7") for h in (3, 4)]
    hours = experiment_of(path, "trace.law.number=", "trace.law.model=at", "trace.law.hours=[[7],[7,14]]")
    assert slugs(hours) == ["local-full-seed0-at7", "local-full-seed0-at7_14"]


def test_resolved_config_reads_back(write: Write) -> None:
    """Law: the config.yaml of a run is itself a configuration file, of the same run."""
    text = "profile: {base: busy, job_h: 7}\nmodel: {top_mlp: [64, 1]}\ntrace: {law: {base: spot_p3, nodes: null}}"
    config = load_config(write(text), ["seed=5", "trace.law.mtbf_h=2"])
    assert load_config(write(to_yaml(config.model_dump(mode="json")))) == config


@pytest.mark.parametrize(
    ("content", "override", "message"),
    [
        (b"seed: 1", "out=\udcff", r"out=\udcff on the command line:1: not YAML: invalid Unicode character"),
        (
            b"seed: 1\nmodel.top_mlp: " + b"[" * 2000 + b"]" * 2000,
            *("", "x.yaml:2: not YAML: while increasing flow level, exceeded maximum nesting depth"),
        ),
        (
            b"name: x\nseed: " + b"1" * 5000,
            *("", f"x.yaml:2: seed: '{'1' * 56}... is not a whole number >= 0 and < 2^63"),
        ),
        ("name: éééééééééé\nseed: \x01\n\n\n".encode(), "", "x.yaml:2: not YAML: control characters are not allowed"),
        (b"seed: \xff", "", "x.yaml:1: not YAML: invalid leading UTF-8 octet"),
    ],
)
def test_bytes_that_no_table_holds_are_one_line(write: Write, content: bytes, override: str, message: str) -> None:
    """Law: as short as any line, whatever is in the file; all other lines are in ``tests/errors``."""
    path = write("")
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(path, [override] if override else [])
    assert str(caught.value) == message


def test_wrong_group_finds_the_right_one() -> None:
    """Law: every leaf's last word alone leads to the leaf, but for a word with another meaning in other tools."""
    for key in leaf_keys():
        last = key.rpartition(".")[2]
        if last not in leaf_keys() | dict.fromkeys([*group_keys(), "workers"]):
            assert key in unknown(last)


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("lr learning-rate trainer.lr Trainer.LR model.lr", "trainer.learning_rate"),
        ("bs batch trainer.bs trainer.batch", "trainer.batch_size"),
        ("eval.batch", "eval.batch_size"),
        ("seeds", "seed"),
        ("epochs trainer.epochs", "data.max_train_samples"),
        ("ps cluster.ps trainer.ps", "cluster.num_ps"),
        ("workers num-workers cluster.workers", "cluster.num_trainers"),
        ("cache.worker", "cache.workers"),
        ("trace.sed", "trace.seed"),
        ("trainr.learning_rat", "trainer.learning_rate"),
    ],
)
def test_words_of_other_tools_lead_to_the_key(words: str, key: str) -> None:
    """Law: within the section first; a word that means something else in another section is not taken for it."""
    for word in words.split():
        assert unknown(word) == f"unknown key {word}; did you mean {key}?"


LIST = "grids:\n- model.bottom_mlp: [64, 16]\n"
OWN = "grids:\n- seed: [0, 1]\n- {seed: [0], trainer.backend: [torch]}\n"


@pytest.mark.parametrize(
    ("text", "overrides", "expected"),
    [
        (GRID, [], "none-seed0 none-seed1 full-seed0 full-seed1 rpc-full-seed0-num_ps2"),  # multiplied, then joined
        (OWN, [], "full-seed0 full-seed1 full-seed0-backendtorch"),  # a name has the keys of its own mapping
        ("grids:\n- seed: [0, 1]\n- seed: [1, 2]\n- trace.seed: [null]\n", [], "full-seed0 full-seed1 full-seed2"),
        (
            *(GRID, ["seed=[7,8]", "engine=local", "strategy.name=none"]),  # a list is an axis, a value fixes it
            "none-seed7 none-seed8 none-seed7-num_ps2 none-seed8-num_ps2",
        ),
        (LIST, [], "full-seed0"),  # of a key whose value is a list
        (LIST, ["model.bottom_mlp=[[64,16],[16]]"], "full-seed0-bottom_mlp64x16 full-seed0-bottom_mlp16"),
    ],
)
def test_cells_of_grids(write: Write, text: str, overrides: list[str], expected: str) -> None:
    """Law: lists of one mapping are multiplied, mappings joined in order, equal cells merged, slugs name what differs."""
    cells = experiment_of(write(text), *overrides).cells
    assert [cell.slug for cell in cells] == [
        slug if slug.startswith("rpc") else f"local-{slug}" for slug in expected.split()
    ]
    assert all(cell.run_dir == Path(f"{cell.config.out}/{cell.slug}-{cell.hash}") for cell in cells)
    assert all(cell.config.model.model_dump()["bottom_mlp"] in ((64, 16), (16,)) for cell in cells if text == LIST)


def test_a_trace_path_can_name_the_seed(write: Write) -> None:
    """Law: `{seed}` in the path of a trace is the seed of the cell, by default 0."""
    cells = experiment_of(write("grids:\n- {seed: [3, 4], trace.path: ['{seed}/t-{seed}.csv']}\n")).cells
    assert [cell.config.trace.path for cell in cells] == ["3/t-3.csv", "4/t-4.csv"]
    assert load_config(write("trace: {path: 't-{seed}.csv'}\n")).trace.path == "t-0.csv"
    assert Config(seed=3, trace=TraceConfig(path="t-{seed}.csv")).trace.path == "t-3.csv"


def hash_of_result(config: Config) -> str:
    """As run_spec.cell_hash: of the engine and of the keys that affect a result."""
    relevant = config.model_dump_json(exclude=IRRELEVANT) + config.engine
    return hashlib.sha256(relevant.encode()).hexdigest()[:10]


def test_cells_of_their_own_may_have_values_of_their_own(write: Write) -> None:
    """Law: an engine is an axis, and a key of no hash may differ between cells that differ otherwise."""
    text = (
        "grids:\n- {engine: [local, rpc], store.keep: 3}\n- {seed: [1, 1], store.keep: 1}\n- {seed: 1, store.keep: 1}\n"
    )
    cells = load_experiment(write(text), cell_hash=hash_of_result).cells
    assert [(cell.config.engine, cell.config.store.keep) for cell in cells] == [("local", 3), ("rpc", 3), ("local", 1)]


def test_options_go_to_the_strategies_that_have_them(write: Write) -> None:
    """Law: in a grid of strategies an option applies to those that have it; cells that differ in others' are one."""
    text = "strategy: {r: 0.5, period: 3}\ngrids:\n- strategy.name: [full, cpr_mfu, cpr_ssu]\n"
    experiment = experiment_of(write(text), "strategy.period=[2,4]")
    assert slugs(experiment) == [
        "local-full-seed0",
        "local-cpr_mfu-seed0",
        "local-cpr_ssu-seed0-period2",
        "local-cpr_ssu-seed0-period4",
    ]
    full, mfu, ssu, _ = (cell.config.strategy.model_dump(exclude_defaults=True) for cell in experiment.cells)
    assert (full, mfu, ssu) == ({}, {"r": 0.5}, {"r": 0.5})
    assert experiment_of(write(to_yaml(experiment.resolved))).cells == experiment.cells


def test_a_file_serves_another_strategy(write: Write) -> None:
    """Law: under a strategy named on the command line a file's options of its own strategy are left out."""
    path = write("strategy: {name: cpr_ssu, period: 3, interval_samples: 100}")
    assert load_config(path).strategy == options_of("cpr_ssu", period=3, interval_samples=100)
    assert load_config(path, ["strategy.name=full"]).strategy == options_of("full", interval_samples=100)
    experiment = experiment_of(path, "strategy.name=none")
    assert [cell.config.strategy for cell in experiment.cells] == [options_of("none")]
    assert experiment_of(write(to_yaml(experiment.resolved))).cells == experiment.cells


def test_each_strategy_takes_the_options_it_has(write: Write) -> None:
    """Law: one file for several strategies; an option that none of them has is refused."""
    path = write("strategy: {name: cpr_ssu, period: 3}")
    configs = load_each(path, ["strategy.interval_samples=7"], ["none", "cpr_ssu"])
    assert configs["none"].strategy == options_of("none")
    assert configs["cpr_ssu"].strategy == options_of("cpr_ssu", period=3, interval_samples=7)
    with pytest.raises(ConfigError, match=r"^strategy.pool: not an option of strategy none or cpr_ssu; cpr_random has"):
        load_each(path, ["strategy.pool=all"], ["none", "cpr_ssu"])
    with pytest.raises(ConfigError, match=r"'cpr_sssu' is not one of .*did you mean cpr_ssu\?"):
        load_each(None, ["strategy.name=cpr_sssu"], ["none"])


def test_resolved_experiment_reads_back(write: Write) -> None:
    """Law: grid.yaml is an experiment file with the same cells, overrides worked in."""
    axes = ("profile=[busy,{base: busy, mtbf_h: 2}]", "trace.law={model: fixed}", "trace.law.number=[1,5]")
    experiment = experiment_of(write(GRID), *axes, "seed=4", "out=else")
    again = experiment_of(write(to_yaml(experiment.resolved)))
    assert again.cells == experiment.cells
    assert len(again.cells) == 9  # `none` has one


@pytest.mark.parametrize("path", sorted(Path("experiments").glob("*.yaml")), ids=lambda path: path.stem)
def test_experiments_of_this_repository_load(path: Path) -> None:
    """Law: every file in experiments/ is valid and starts with a comment that holds its own command, and those that make
    the traces which are not part of the repository.
    """
    text = path.read_text()
    assert text.startswith("#")
    assert f"experiments/{path.name}" in text
    cells = experiment_of(path).cells
    for cell in cells:
        trace = cell.config.trace.path
        if trace is None:
            assert cell.config.trace.law is not None or cell.config.strategy.name == "none"
        else:
            assert Path(trace).exists() or f"--out {trace.replace(f'-{cell.config.seed}.', '-$K.')}" in text
