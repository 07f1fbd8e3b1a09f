"""`run.py export` and `run.py bundle`, as typed."""

import io
import json
import lzma
import shutil
import tarfile
from pathlib import Path

import pytest

from harness.files import digest_of
from harness.record.rundir import SEALED, RunDir, write_seal
from tests.cli.conftest import Cli


def reseal(run: RunDir) -> None:
    """Give a record that was changed the seal of one that was not."""
    num_events = run.events.read_text().count("\n")
    digests = {name: digest_of(run.path / name) for name in SEALED}
    write_seal(run, time="2026-11-28T00:00:00+00:00", num_events=num_events, digests=digests, audit=[])


def test_a_run_is_exported(cli: Cli, finished: Path) -> None:
    """Law: the line names the folder and the AUC of the record; a folder that exists is refused."""
    shutil.copytree(finished, "out")
    done = cli("export", "out")
    auc = json.loads(Path("out-export/run.json").read_text())["results"]["auc"]
    assert (done.code, done.out) == (0, done.out)
    assert done.out.startswith(f"out-export: 26 tables, 8 dense tensors, predictions.csv; AUC {auc}, log loss ")
    assert cli("export", "out").errors == ["error: --out: out-export: exists; remove it or choose another name"]


def test_a_bundle_is_the_same_bytes_and_its_cells_the_same_bits(cli: Cli) -> None:
    """Law: twice the same archive; its cells run again are equal, and one whose record was changed is not."""
    cli("grid", "grid.yaml", "seed=[0]")
    assert cli("bundle", "out").code == 0
    cli("bundle", "out", "--out", "again.tar.xz")
    assert Path("out.tar.xz").read_bytes() == Path("again.tar.xz").read_bytes()
    checked = cli("bundle", "--check", "out.tar.xz", "--cells", "9")
    assert (checked.code, checked.out.splitlines()[-1]) == (0, "2 of 2 cells equal to the bit")
    (events,) = Path("out").glob("*partial*/events.jsonl")
    *lines, last = events.read_text().splitlines()
    finish = json.loads(last)
    finish["log_loss"] += 1e-15
    events.write_text("\n".join([*lines, json.dumps(finish)]) + "\n")
    assert "expected what the run wrote" in cli("bundle", "out", "--out", "changed.tar.xz").errors[-1]
    reseal(RunDir(events.parent))
    cli("bundle", "out", "--out", "changed.tar.xz")
    checked = cli("bundle", "--check", "changed.tar.xz", "--cells", "2")
    assert (checked.code, checked.out.splitlines()[-1]) == (1, "1 of 2 cells equal to the bit")
    assert "DIFFERENT: event" in checked.out


def test_a_check_without_the_data_says_how_they_are_made(cli: Cli, finished: Path) -> None:
    """Law: one line, before a cell runs, for data that are missing, and for others; data.path= names a folder."""
    cli("grid", "grid.yaml", "seed=[0]", "strategy.name=none")
    cli("bundle", "out")
    Path("data").rename("elsewhere")
    (line,) = cli("bundle", "--check", "out.tar.xz").errors
    assert line.startswith("error: data.path: data: no such folder")
    assert "made by: run.py data prepare --out data --categories number clicks.tsv; data.path= names another" in line
    assert cli("bundle", "--check", "out.tar.xz", "data.path=elsewhere").code == 0
    meta = Path("elsewhere/meta.json")
    meta.write_text(meta.read_text().replace('"digest": "', '"digest": "0'))
    (line,) = cli("bundle", "--check", "out.tar.xz", "data.path=elsewhere").errors
    assert line.startswith("error: data.path: elsewhere: expected data of digest ")


@pytest.mark.parametrize("name", ["/etc/x", "../x", "runs/../../x", "link"])
def test_an_archive_with_a_path_outside_or_a_link_is_refused(cli: Cli, name: str) -> None:
    """Law: one line that names the member; nothing is written outside."""
    with lzma.open("evil.tar.xz", "wb") as file, tarfile.open(fileobj=file, mode="w") as tar:
        member = tarfile.TarInfo(name)
        if name == "link":
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(member, io.BytesIO())
    before = cli.files()
    expected = f"error: evil.tar.xz: {name}: expected a file within the archive"
    assert cli("bundle", "--check", "evil.tar.xz").errors == [expected]
    assert cli.files() == before
