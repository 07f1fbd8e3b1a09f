"""Write the expected lines of all cases anew: ``python -m tests.errors.write``. Read the difference before a commit."""

import tempfile
from pathlib import Path

from tests.errors.table import TABLES, cases, made_folder, said


def main() -> None:
    """Carry out every case, and put what it says below its words."""
    with tempfile.TemporaryDirectory() as folder:
        home = made_folder(Path(folder))
        found = {case.place: said(case, home).lines for case in cases()}
    for table in TABLES:
        written: list[str] = []
        for number, line in enumerate(table.read_text().splitlines(), start=1):
            if not line or line[0] in "#|@$":
                written.append(line)
            written += found.get(f"{table.stem}:{number}", [])
        table.write_text("".join(f"{line}\n" for line in written))


if __name__ == "__main__":
    main()
