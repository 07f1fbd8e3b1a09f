"""Laws of the seal: what a finished run wrote is what is shown, or it is named."""

import json
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import analysis
import run
from harness.core.errors import StoreError
from harness.core.seeds import generator
from harness.record.audit import check
from harness.record.recorder import Recorder
from harness.record.rundir import SEALED, RunDir, kept_audit, verify, write_seal
from tests.made_runs import altered, made_config, made_events, reseal, write_run

FILES = (*SEALED, "DONE")
_NUM_FLIPS = 200


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    path = tmp_path_factory.mktemp("sealed") / "run"
    write_run(path, made_config("cpr_mfu"))
    return path


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_named_and_no_result_is_shown(finished: Path, tmp_path: Path, name: str) -> None:
    """One bit at 200 random places of each file that decides a result: one line with the file, instead of the run."""
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    content = (path / name).read_bytes()
    draw = generator(0, "flips", name)
    for place, bit in zip(draw.integers(len(content), size=_NUM_FLIPS), draw.integers(8, size=_NUM_FLIPS), strict=True):
        flipped = bytearray(content)
        flipped[place] ^= 1 << int(bit)
        (path / name).write_bytes(flipped)
        with pytest.raises(StoreError) as caught:
            analysis.show(path)
        assert str(caught.value).startswith(f"{path / name}: expected "), (place, bit)
        assert "\n" not in str(caught.value)
    cells = analysis.load(tmp_path)
    assert cells["status"].to_list() == ["damaged"]
    assert cells["auc"].isna().to_list() == [True], "no result in a frame"


def test_what_is_no_file_is_named(finished: Path, tmp_path: Path) -> None:
    """A sealed file that is gone, cut, a folder or a FIFO is one line, at once; only a run without DONE is not done."""
    damages: dict[Callable[[Path, bytes], object], str] = {
        lambda file, content: file.mkdir(): "cannot be read: ",
        lambda file, content: os.mkfifo(file): "cannot be read: ",
        lambda file, content: None: "expected .*; restore it from a copy, or remove DONE",
        lambda file, content: file.touch(): "expected .*; restore it from a copy, or remove DONE",
        lambda file, content: file.write_bytes(content[:-1]): "expected .*; restore it from a copy, or remove DONE",
    }
    for number, (damage, words) in enumerate(damages.items()):
        for name in FILES:
            path = tmp_path / f"{name}-{number}"
            shutil.copytree(finished, path)
            content = (path / name).read_bytes()
            (path / name).unlink()
            damage(path / name, content)
            if not (path / "DONE").exists():
                assert RunDir(path).status == "unfinished"
                continue
            with pytest.raises(StoreError, match=rf"^{re.escape(str(path / name))}: {words}"):
                analysis.show(path)


@pytest.mark.parametrize("name", ["config.yaml", "env.json"])
@pytest.mark.parametrize("resumes", [False, True])
def test_a_file_that_changes_before_the_end_is_named(tmp_path: Path, name: str, *, resumes: bool) -> None:
    """What is sealed is what the run wrote, also of one that went on; put back as it was, the run has its result.

    A run goes on with the environment of its first event only.
    """
    *events, finished = made_events(made_config())
    recorder = Recorder(tmp_path / "run", made_config())
    recorder.record(altered(events[0], machine={"env": recorder.env_digest}))
    for event in events[1:]:
        recorder.record(event)
    file = tmp_path / "run" / name
    before = file.read_text()
    changed = before.replace("seed: 0", "seed: 8").replace('"num_threads": 1', '"num_threads": 2')
    if resumes:
        position = recorder.position()
        recorder.fail()
        for content in (changed, "{", "") if name == "env.json" else ():
            file.write_text(content)
            with pytest.raises(StoreError, match=rf"^{file}: expected what the run wrote .* got \w+$"):
                Recorder(tmp_path / "run", made_config(), since=position)
            assert (tmp_path / "run" / "error.txt").exists(), "nothing else changes"
        file.write_text(before)
        recorder = Recorder(tmp_path / "run", made_config(), since=position)
    file.write_text(changed)
    assert changed != before
    recorder.record(finished)
    recorder.done()
    with pytest.raises(StoreError, match=rf"^{file}: expected what the run wrote"):
        analysis.show(tmp_path / "run")
    file.write_text(before)
    verify(recorder.run)


def test_show_fails_for_a_result_that_does_not_follow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`show` audits again, names figure, claim and what the events give, and ends with code 1, though the seal holds.

    The record is audited when it is sealed, too, and tables show what DONE keeps of that.
    """
    config, run_dir = made_config("cpr_mfu"), RunDir(tmp_path / "run")
    *events, finished = made_events(config)
    events.append(altered(finished, pls=0.5))
    with Recorder(run_dir.path, config) as recorder:
        for event in events:
            recorder.record(event)
        recorder.done()
    found = check(events, config.model_dump(mode="json"))
    assert len(found) == 1
    assert kept_audit(run_dir) == [*analysis.load(run_dir.path)["disagreement"]] == found
    values = json.loads(run_dir.done.read_text())
    write_seal(run_dir, time=values["time"], num_events=values["num_events"], digests=values["digests"], audit=["kept"])
    assert [*analysis.load(run_dir.path)["disagreement"]] == ["kept"]
    assert run.main(["show", str(run_dir.path)]) == 1
    assert f"disagrees: {found[0]}" in capsys.readouterr().out.replace("\n", " ")


def _without(part: str, text: str) -> str:
    assert part in text
    return text.replace(part, "")


def test_a_record_of_another_version_is_one_line(tmp_path: Path) -> None:
    """Law: a DONE without digests, a config without a key that is used, an event without a field."""
    used = ("  spares: 0\n", "  on_loss: replace\n", "shrink_o_res_h: null, ")
    cases: list[tuple[str, Callable[[str], str]]] = [
        ("DONE", lambda _: "2026-01-01T00:00:00+00:00\n"),
        *(("config.yaml", partial(_without, part)) for part in used),
        ("events.jsonl", partial(_without, '"restores_exactly":true,')),
    ]
    for number, (name, change) in enumerate(cases):
        file = tmp_path / str(number) / name
        write_run(file.parent, made_config())
        file.write_text(change(file.read_text()))
        if name != "DONE":
            reseal(file.parent)
        with pytest.raises(StoreError, match=rf"^{file}:(1:)? [^\n]*(the digests|: expected this key|no field)[^\n]*$"):
            analysis.show(file.parent)
    assert analysis.load(tmp_path)["status"].to_list() == ["damaged"] * len(cases)
