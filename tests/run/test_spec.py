"""Laws of a resolved config: which backend a run has, and what its hash says of it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.config.model import Config
from harness.core.errors import ConfigError
from harness.kernels import products
from harness.record.rundir import RunDir, read_config
from harness.run.spec import RunSpec, cell_hash, check
from tests.runs import changed, run, saving_every


@pytest.mark.parametrize("is_available", [False, True])
def test_what_auto_chose_is_in_the_hash(config: Config, monkeypatch: pytest.MonkeyPatch, is_available: bool) -> None:
    """The resolved config names a backend, and its hash is that of a config which names this backend."""
    monkeypatch.setattr(products, "AVAILABLE", is_available)
    config = changed(config, trainer__backend="auto", data__split="dlrm")
    chosen, other = ("compiled", "torch") if is_available else ("torch", "compiled")
    assert RunSpec(config).config == changed(config, trainer__backend=chosen)
    assert cell_hash(config) == cell_hash(changed(config, trainer__backend=chosen))
    assert cell_hash(config) != cell_hash(changed(config, trainer__backend=other))


def test_a_torch_without_cuda_is_refused_before_a_run_begins(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, with the version; no device need be asked for."""
    monkeypatch.setattr(torch.version, "cuda", None)
    config = changed(config, trainer__device="cuda", trainer__backend="torch")
    with pytest.raises(ConfigError, match=r"^trainer\.device: expected a torch with CUDA for cuda, got .*; use cpu$"):
        RunSpec(config).validate()


def test_the_trainer_alone_asks_for_a_cuda_device(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: who checks a config forks ranks afterwards, and a process that has asked can fork none that uses CUDA."""
    config = changed(config, trainer__device="cuda", trainer__backend="torch")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("asked by who checks the config"))
    RunSpec(config).validate()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"^trainer\.device: expected a CUDA device for cuda, .*; use cpu$"):
        run(config, tmp_path / "run")


def test_contents_stand_in_the_record(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend that ``auto`` chose, and digests of data and trace, which changes with a line; null without one."""
    monkeypatch.setattr(products, "AVAILABLE", False)
    short = changed(config, data__max_train_samples=32, strategy__name="none", trainer__backend="auto")
    found: list[dict[str, str]] = []
    for number, content in enumerate(("hour,rank\n", "hour,rank\n1,ps0\n", None)):
        (tmp_path / "mine.csv").write_text(content or "")
        out, path = tmp_path / f"run{number}", str(tmp_path / "mine.csv") if content else None
        run(changed(short, trace__path=path), out)
        env = json.loads(RunDir(out).env.read_text())
        found.append(env["trace"])
        assert env["data"]["digest"] == RunSpec(config).dataset.digest
        assert read_config(out)["trainer"]["backend"] == env["backend"] == "torch"
    empty, full, missing = found
    assert missing is None
    assert empty["digest"] != full["digest"]


@pytest.mark.parametrize(
    ("keys", "is_said"),
    [
        ({}, True),
        ({"data__max_train_samples": None}, False),
        ({"strategy__name": "none"}, False),
        ({"trace__clock": "wall"}, False),
        ({"trace__inject": "wall", "engine": "rpc"}, False),
    ],
)
def test_failures_that_meet_at_one_boundary_are_told(
    config: Config, tmp_path: Path, keys: dict[str, Any], is_said: bool
) -> None:
    """Two kills of one rank are one then: a remark before the run, where failures strike at boundaries of samples."""
    (tmp_path / "twice.csv").write_text("hour,rank\n9,ps1\n9.5,ps1\n30,ps2\n30,ps3\n")
    config = changed(config, trace__path=str(tmp_path / "twice.csv"), strategy__name="partial")
    config = saving_every(changed(config, data__max_train_samples=64), 32)
    told = [line for line in check(changed(config, **keys)) if "instants" in line]
    words = "3 failure instants of trace twice fall on 2 boundaries between steps, and instants at one boundary are one"
    assert [line.startswith(words) for line in told] == [True] * is_said


@pytest.mark.parametrize(
    ("key", "what"),
    [
        ("data__max_train_samples", "training samples"),
        ("eval__max_samples", "samples to evaluate"),
        ("eval__curve_samples", "samples to evaluate"),
        ("eval__every_steps", "steps"),
    ],
)
def test_a_number_beyond_what_there_is_is_told(config: Config, key: str, what: str) -> None:
    """Law: a run of fewer samples or evaluations than its config asks for says so, once, before it begins."""
    (line,) = [line for line in check(changed(config, **{key: 10_000_000})) if "there are" in line]
    name = key.replace("__", ".")
    found = re.fullmatch(rf"{name}=10000000: there are ([\d,]+) {what}; a larger number changes nothing", line)
    assert found is not None
    most = int(found[1].replace(",", ""))
    assert not [line for line in check(changed(config, **{key: most})) if "there are" in line]
