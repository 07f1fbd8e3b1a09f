"""Laws of configuration files, overrides and experiment grids."""

# ruff: noqa: E501 - the messages under test are single lines

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from harness.config.experiment import Experiment, load_config, load_each, load_experiment
from harness.config.keys import IRRELEVANT, group_keys, leaf_keys, unknown
from harness.config.model import ClusterConfig, Config, TraceConfig
from harness.config.settings import read_argument
from harness.config.yaml_file import to_yaml
from harness.core.errors import ConfigError
from harness.core.strategies import options_of

Write = Callable[[str], Path]

TRANSPORTS = ", ".join(get_args(get_args(ClusterConfig.model_fields["transports"].annotation)[0]))

NO_VALUE = "unsupported YAML value; expected text, a number, a list or a mapping without tags, at most 20 levels deep"

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
    busy = load_config(write("profile: busy")).emulated
    changed = load_config(write("profile: busy"), ["profile.mtbf_h=3"]).emulated
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
    ("text", "override", "message"),
    [
        ("strategy:\n  interval_sample: 3", "", "x.yaml:2: unknown key strategy.interval_sample; did you mean strategy.interval_samples?"),
        ("seed: 1", "batch_size=3", "unknown key batch_size; did you mean eval.batch_size or trainer.batch_size? (batch_size=3 on the command line)"),
        ("profile: {jobh: 1}", "", "x.yaml:1: unknown key profile.jobh; did you mean profile.job_h?"),
        ("seed: 1", "trainer.batch_size=abc", "trainer.batch_size: 'abc' is not a whole number >= 1 (trainer.batch_size=abc on the command line)"),
        ("seed: true", "", "x.yaml:1: seed: true is not a whole number >= 0 and < 2^63"),
        ("trace: {seed: -9223372036854775809}", "", "x.yaml:1: trace.seed: -9223372036854775809 is not a whole number >= -2^63 and < 2^63 or null"),
        ("strategy: {name: cpr_mfu, r: 2}", "", "x.yaml:1: strategy.r: 2 is not a number > 0 and <= 1"),
        ("trainer: {learning_rate: .inf}", "", "x.yaml:1: trainer.learning_rate: '.inf' is not a number > 0 and <= 1000000"),
        ("store: {fsync: on}", "", "x.yaml:1: store.fsync: 'on' is not true or false"),
        ("strategy: {name: cpr_mfuu}", "", "x.yaml:1: strategy.name: 'cpr_mfuu' is not one of none, never_save, full, partial, cpr_vanilla, cpr_random, cpr_mfu, cpr_ssu, cpr_mass, cpr_scar, cpr_mirror, differential, buddy; did you mean cpr_mfu?"),
        ("model: {name: dcn, size: kaggle}", "", "x.yaml:1: model.size: 'kaggle' is not one of tiny, bagpipe, mlperf, bars, bars_avazu"),
        ("model: {name: deepfm, top_mlp: [1]}", "", "x.yaml:1: model.top_mlp: not an option of model deepfm; dlrm has it"),
        ("strategy: {name: [full]}", "", "x.yaml:1: strategy.name: [\"full\"] is not one of none, never_save, full, partial, cpr_vanilla, cpr_random, cpr_mfu, cpr_ssu, cpr_mass, cpr_scar, cpr_mirror, differential, buddy; a list is an axis of `run.py grid`"),
        ("strategy: 3", "", "x.yaml:1: strategy: takes no value such as 3; it holds strategy.name, strategy.interval_samples, strategy.restore_optimizer, strategy.pls_target, strategy.interval_counts_ranks, strategy.r, strategy.untracked, strategy.pool, strategy.period, strategy.eviction, strategy.share, strategy.bits, strategy.recovery"),
        ("strategy: {period: 2}", "", "x.yaml:1: strategy.period: not an option of strategy full; cpr_ssu has it"),
        ("strategy: {name: none}", "strategy.r=0.5", "strategy.r: not an option of strategy none; cpr_random, cpr_mfu, cpr_ssu, cpr_mass, cpr_scar, cpr_mirror have it (strategy.r=0.5 on the command line)"),
        ("strategy: {ssu_period: 2}", "", "x.yaml:1: unknown key strategy.ssu_period; did you mean strategy.period of cpr_ssu?"),
        ("seed: 1", "strategy.sahre=0.1", "unknown key strategy.sahre; did you mean strategy.share of cpr_mirror? (strategy.sahre=0.1 on the command line)"),
        ("strategy: {num_tracked: 2}", "", "x.yaml:1: unknown key strategy.num_tracked; did you mean metrics.num_tracked?"),
        ("Trainer.Batch_size: 2", "", "x.yaml:1: unknown key Trainer.Batch_size; did you mean trainer.batch_size?"),
        ("cluster: {transports: uv}", "", f"x.yaml:1: cluster.transports: 'uv' is not a list of at least 1, whose items are each one of {TRANSPORTS}"),
        ("seed: 1", "cluster.num_ps=1001", "cluster.num_ps: 1001 is not a whole number >= 1 and <= 1000 or null (cluster.num_ps=1001 on the command line)"),
        ("profile: bus", "", "x.yaml:1: profile: 'bus' is not one of cpr56, poster50, cpr56_priced, poster50_priced, busy, from_trace, nor a mapping with base: one of them; did you mean busy?"),
        ("seed: 1", "profile.snapshot_gbps=8", "profile.snapshot_gbps: expected profile.network_gbps too, got null; a snapshot is priced by their ratio (profile.snapshot_gbps=8 on the command line)"),
        ("profile: {base: busy, job_h: x}", "", "x.yaml:1: profile.job_h: 'x' is not a number > 0"),
        ("profile:", "", "x.yaml:1: profile: null is not one of cpr56, poster50, cpr56_priced, poster50_priced, busy, from_trace, nor a mapping with base: one of them"),
        ("trace:\n  law: llama", "", "x.yaml:2: trace.law: 'llama' is not one of exponential, cpr56, poster50, llama3, infinitehbd, lanl20, spot_p3 or null, nor a mapping with base: one of them; did you mean llama3?"),
        ("trace: {law: llama3}", "trace.law.base=llama", "trace.law.base: 'llama' is not one of exponential, cpr56, poster50, llama3, infinitehbd, lanl20, spot_p3; did you mean llama3? (trace.law.base=llama on the command line)"),
        ("trace:\n  law:\n    shap: 2", "", "x.yaml:3: unknown key trace.law.shap; did you mean trace.law.shape?"),
        ("trace:\n  law: {number: 0}", "", "x.yaml:2: trace.law.number: 0 is not a whole number >= 1 and <= 10000 or null"),
        ("trace:\n  law: {model: fixed,\n    shape: 2}", "", "x.yaml:3: trace.law.shape: not a key of model fixed; gamma, weibull, lognormal have it"),
        ("trace: {law: llama3}", "trace.law.number=3", "trace.law.number: not a key of model exponential; fixed has it (trace.law.number=3 on the command line)"),
        ("trace: {law: {model: fixed}}", "", "trace.law.number: expected a value with model fixed, got none"),
        ("trace.law.model: at", "trace.law.hours=[7,x]", "trace.law.hours: [7, \"x\"] is not a list whose items are each a number >= 0 (trace.law.hours=[7,x] on the command line)"),
        ("trace.law.group_sizes: [[1, 2]]", "", "x.yaml:1: trace.law.group_sizes: [[1, 2]] is not a list whose items are each a list of a whole number >= 2 and a number > 0"),
        ("trace: {law: llama3,\n  path: a.csv}", "", "x.yaml:2: trace.path: expected none with a trace.law (llama3), got a.csv; trace.path= on the command line leaves it out"),
        ("seed: [1, 2]", "", "x.yaml:1: seed: [1, 2] is not a whole number >= 0 and < 2^63; a list is an axis of `run.py grid`"),
        ("seed: 1", "seed=[1,2]", "seed: [1, 2] is not a whole number >= 0 and < 2^63; a list is an axis of `run.py grid` (seed=[1,2] on the command line)"),
        ("grids: [{seed: [0, 1]}]", "", "x.yaml: expected one configuration, got `grids:`; run it by `run.py grid x.yaml`"),
        ("seed: 1\nseed: 2", "", "x.yaml:2: seed is already given at x.yaml:1; keep one"),
        ("seed: 1\ntrainer: {batch_size: 1}\ntrainer.batch_size: 2", "", "x.yaml:3: trainer.batch_size is already given at x.yaml:2; keep one"),
        ("seed: 1\nname: [a", "", "x.yaml:2: not YAML: while parsing a flow sequence, did not find expected ',' or ']'"),
        ("a: !!python/object:os.system x", "", f"x.yaml:1: {NO_VALUE}"),
        ("- seed", "", "x.yaml:1: expected a mapping of keys to values at the top of the file"),
        ("# nothing\n", "", "x.yaml:1: expected a mapping of keys to values at the top of the file"),
        ("seed: 1", "seed", "seed on the command line: expected the form key=value"),
        ("seed: 1", "out=[", "out=[ on the command line:1: not YAML: while parsing a flow node, did not find expected node content"),
        ("seed: 1", "out=\udcff", "out=\\udcff on the command line:1: not YAML: invalid Unicode character"),
        ("seed: 1", "seed=!!float x", f"seed=!!float x on the command line:1: {NO_VALUE}"),
        ("seed: 1\nmodel.top_mlp: " + "[" * 22 + "]" * 22, "", f"x.yaml:2: {NO_VALUE}"),
        ("seed: 1\nmodel.top_mlp: " + "[" * 2000 + "]" * 2000, "", "x.yaml:2: not YAML: while increasing flow level, exceeded maximum nesting depth"),
        ("name: x\nseed: " + "1" * 5000, "", f"x.yaml:2: seed: '{'1' * 56}... is not a whole number >= 0 and < 2^63"),
        (None, "", "x.yaml: no such file"),
        (Path("x.yaml").mkdir, "", "x.yaml: cannot be read: Is a directory"),
        ("name: éééééééééé\nseed: \x01\n\n\n", "", "x.yaml:2: not YAML: control characters are not allowed"),
        (b"seed: \xff", "", "x.yaml:1: not YAML: invalid leading UTF-8 octet"),
    ],
)  # fmt: skip
def test_each_mistake_is_one_line(
    write: Write, text: str | bytes | Callable[[], object] | None, override: str, message: str
) -> None:
    """Law: a mistake is told in one line, as short as any, that says what, where, and what would be right."""
    path = write(text if isinstance(text, str) else "")
    if not isinstance(text, str):
        path.unlink()
    if isinstance(text, bytes):
        path.write_bytes(text)
    elif callable(text):
        text()
    with pytest.raises(ConfigError) as caught:
        load_config(path, [override] if override else [])
    assert str(caught.value) == message


def test_every_mistake_is_told(write: Write) -> None:
    """Law: three mistakes are three lines, not one run each."""
    with pytest.raises(ConfigError) as caught:
        load_config(write("seed: x\nengine: tpu\n"), ["eval.split=train"])
    assert [line.split(": ")[1 if line.startswith("x") else 0] for line in str(caught.value).splitlines()] == [
        "seed",
        "engine",
        "eval.split",
    ]


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
    expected = "did you mean data.max_train_samples? A run trains for one epoch, or for so many samples."
    for word in ("epochs", "trainer.epochs"):
        assert unknown(word) == f"unknown key {word}; {expected}"


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


@pytest.mark.parametrize(
    ("text", "override", "message"),
    [
        ("seed: 1", "store.keep=[1,2,3]", "store.keep: {} (store.keep=[1,2,3] on the command line)"),
        ("grids:\n- cluster.rpc_timeout_s: [60, 90]", "", "x.yaml:2: cluster.rpc_timeout_s: {}"),
        ("grids:\n- {seed: [0, 1]}\n- {seed: 1, wandb.mode: disabled}", "wandb.project=p", "x.yaml:3: wandb.mode: {}"),
    ],
)
def test_a_value_that_no_cell_would_have_is_refused(write: Write, text: str, override: str, message: str) -> None:
    """Law: cells that differ in a key of no hash are one, so a second value of that key is refused in one line."""
    with pytest.raises(ConfigError) as caught:
        load_experiment(write(text), [override] if override else [], cell_hash=hash_of_result)
    expected = "expected one value, as it changes no result and cells that differ in it alone are one cell; to time each value, give each an `out` of its own"
    assert str(caught.value) == message.format(expected)


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


@pytest.mark.parametrize(
    ("text", "override", "message"),
    [
        ("seed: [1]\ngrids: [{}]", "", "x.yaml:1: seed: [1] is not a whole number >= 0 and < 2^63; an axis belongs under `grids:`"),
        ("grids: {seed: [1]}", "", "x.yaml:1: grids: expected a list of mappings, e.g. `- {seed: [0, 1]}`"),
        ("grids:\n- {}\n- seed", "", "x.yaml:3: grids: expected a list of mappings, e.g. `- {seed: [0, 1]}`"),
        ("grids:\n- strategy.name: [full, none]\n  strategy.r: [0.1]", "", "x.yaml:3: strategy.r: not an option of strategy full or none; cpr_random, cpr_mfu, cpr_ssu, cpr_mass, cpr_scar, cpr_mirror have it"),
        ("grids:\n- strategy.name: [full, ful]\n  strategy.r: [0.1]", "", "x.yaml:2: strategy.name: 'ful' is not one of none, never_save, full, partial, cpr_vanilla, cpr_random, cpr_mfu, cpr_ssu, cpr_mass, cpr_scar, cpr_mirror, differential, buddy; did you mean full?"),
        ("grids:\n- sed: [1]", "", "x.yaml:2: unknown key sed; did you mean seed?"),
        ("seed: 0\ngrid: [{seed: [0, 1]}]", "", "x.yaml:2: unknown key grid; did you mean grids?"),
        ("seed: 0", "seed=0, 1", "seed: '0, 1' is not a whole number >= 0 and < 2^63; did you mean the list [0,1]? (seed=0, 1 on the command line)"),
        ("profile: busy,cpr56", "", "x.yaml:1: profile: 'busy,cpr56' is not one of cpr56, poster50, cpr56_priced, poster50_priced, busy, from_trace, nor a mapping with base: one of them; did you mean the list [busy,cpr56]?"),
        ("grids:\n- seed: [1, x, x]", "", "x.yaml:2: seed: 'x' is not a whole number >= 0 and < 2^63"),
        ("grids:\n- seed: []", "", "x.yaml:2: seed: expected at least one value, got an empty list"),
        (
            "seed: 1",
            "out=[a,b]",
            'out: expected one value for all cells, got the list ["a", "b"] (out=[a,b] on the command line)',
        ),
        ("grids:\n- profile: [{base: busy, jobh: 1}]", "", "x.yaml:2: unknown key profile.jobh; did you mean profile.job_h?"),
        ("profile: {job_h: 9}\ngrids:\n- profile: [{job_h: x}]", "", "x.yaml:3: profile.job_h: 'x' is not a number > 0"),
    ],
)  # fmt: skip
def test_each_mistake_of_an_experiment_is_one_line(write: Write, text: str, override: str, message: str) -> None:
    """Law: a mistake in an axis is told once, however many cells it would spoil."""
    with pytest.raises(ConfigError) as caught:
        experiment_of(write(text), *([override] if override else []))
    assert str(caught.value) == message


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
