"""Writes golden records, so that those of two commits can be compared event by event.

``python -m tests.golden FOLDER`` writes each case's record into ``FOLDER/NAME.jsonl``. ``--digests`` writes
``records.json`` besides: only where a record was wrong.
"""

import argparse
import json
import tempfile
from pathlib import Path

from tests.golden.cases import CASES, carry_out, digest, golden_clicks, record_of

DIGESTS = Path(__file__).with_name("records.json")


def main() -> None:
    """Carry out all cases."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--digests", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    digests: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        data = golden_clicks(Path(scratch) / "clicks")
        for name, case in CASES.items():
            record = record_of(carry_out(case, data, Path(scratch) / name))
            (options.folder / f"{name}.jsonl").write_text(record)
            digests[name] = digest(record)
    if options.digests:
        DIGESTS.write_text(json.dumps(digests, indent=1) + "\n")


if __name__ == "__main__":
    main()
