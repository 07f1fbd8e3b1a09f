"""The split of prepared rows into training, test and validation set: DLRM's, or what `data prepare` was asked for."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from harness.config.words import suggest
from harness.core.errors import DataError

NUM_PARTS = 7  # DLRM cuts the file into as many parts as Kaggle's log has days
MIN_ROWS = 2 * NUM_PARTS  # below that the test or the validation set can be empty
HALF = "half"


@dataclass(frozen=True)
class SplitRows:
    """Row ranges of the sets: train [0, num_train), test [num_train, first_validation), validation the rest."""

    num_train: int
    first_validation: int
    num_rows: int


def split_rows(num_rows: int) -> SplitRows:
    """Split into seven near-equal parts, longer ones first: 1-6 train; 7 is halved into test (longer) and validation.

    As DLRM does (facebookresearch/dlrm, data_utils.py); Kaggle's 45,840,617 rows give 39,291,958 / 3,274,330.
    """
    size, num_longer = divmod(num_rows, NUM_PARTS)
    num_train = (NUM_PARTS - 1) * size + min(num_longer, NUM_PARTS - 1)
    return SplitRows(num_train, num_train + -(-(num_rows - num_train) // 2), num_rows)


class HeldOut(BaseModel):
    """What a preparation was asked to keep for evaluation.

    ``test``: names of the files of the test set, or the fraction of all rows that is held out, the last ones.
    ``validation``: names of files; ``half``: the second half of what ``test`` holds out; empty: no validation set.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    test: tuple[str, ...] | float
    validation: tuple[str, ...] | Literal["half"]

    def cut(self, num_rows_S: Sequence[int]) -> "OwnSplit":
        """The split of files with ``num_rows_S`` rows, in the order of :func:`hold_out`.

        Raises DataError if a set would be empty.
        """
        num_rows, num_validation_files = sum(num_rows_S), 0 if self.validation == HALF else len(self.validation)
        num_validation = sum(num_rows_S[len(num_rows_S) - num_validation_files :])
        if isinstance(self.test, tuple):
            num_evaluated = sum(num_rows_S[-len(self.test) - num_validation_files :])
        else:
            num_evaluated = round(self.test * num_rows)
        if self.validation == HALF:
            num_validation = num_evaluated // 2
        num_train, first_validation = num_rows - num_evaluated, num_rows - num_validation
        if not 0 < num_train < first_validation or (self.validation and not num_validation):
            got = f"{num_train:,}, {first_validation - num_train:,} and {num_validation:,}"
            raise DataError(f"--test: expected rows for training, test and validation, got {got}")
        return OwnSplit(**dict(self), num_train=num_train, first_validation=first_validation)

    def options(self) -> list[str]:
        """The options of ``data prepare``."""
        test = self.test if isinstance(self.test, tuple) else [f"{self.test!r}"]
        validation = [self.validation] if isinstance(self.validation, str) else self.validation
        return ["--test", *test, *(["--validation", *validation] if validation else [])]


class OwnSplit(HeldOut):
    """The split of a folder that was prepared with ``--test``; the bounds are those of :class:`SplitRows`."""

    num_train: Annotated[int, Field(ge=1)]
    first_validation: Annotated[int, Field(ge=2)]


def told(rows: SplitRows, held_out: HeldOut | None) -> str:
    """The sizes of the sets and the origin of their rows, in one line. ``held_out``: None for DLRM's split."""
    test, validation = ("the last seventh", HALF) if held_out is None else (held_out.test, held_out.validation)
    if not isinstance(test, str):
        test = ", ".join(test) if isinstance(test, tuple) else f"the last {test:g} of the rows"
    origins = (f"half of {test}", "the other half") if validation == HALF else (test, ", ".join(validation))
    num_test, num_validation = rows.first_validation - rows.num_train, rows.num_rows - rows.first_validation
    text = f"{rows.num_train:,} samples for training, {num_test:,} for the test ({origins[0]})"
    return f"{text}, {f'{num_validation:,} for validation ({origins[1]})' if validation else 'none for validation'}"


def hold_out(
    sources: Sequence[Path],
    test: Sequence[str],
    validation: Sequence[str],
    in_order: Callable[[Sequence[Path]], list[Path]],
) -> tuple[list[Path], HeldOut | None]:
    """The files in the order for training, for the test, for validation, each group ``in_order``; and what is held out.

    ``test``, ``validation``: the words of the options; none of both is DLRM's split. Raises DataError for words that
    are no file of ``sources``, no fraction and not ``half``, for a file in two sets, and for none to train on.
    """
    if not test:
        if validation:
            raise DataError(f"--validation: expected --test beside it, got {' '.join(validation)} alone")
        return in_order(sources), None
    frac = _fraction(test, sources)
    test_files = [] if frac else [_named("--test", word, sources) for word in test]
    is_half = [*validation] == [HALF]
    if frac and validation and not is_half:
        raise DataError(f"--validation: expected {HALF} or nothing beside --test {test[0]}, got {' '.join(validation)}")
    validation_files = [] if is_half else [_named("--validation", word, sources) for word in validation]
    held = [*test_files, *validation_files]
    if twice := next((path for path in held if held.count(path) > 1), None):
        hint = f"; --validation {HALF} takes the second half of the test files"
        raise DataError(f"--test, --validation: expected each file once, got {twice} twice{hint}")
    train = [path for path in sources if path not in held]
    if not train:
        raise DataError("--test, --validation: expected a file to train on beside these, got none")
    test_files, validation_files = in_order(test_files), in_order(validation_files)
    held_out = HeldOut(
        test=frac or tuple(path.name for path in test_files),
        validation=HALF if is_half else tuple(path.name for path in validation_files),
    )
    return [*in_order(train), *test_files, *validation_files], held_out


def _fraction(test: Sequence[str], sources: Sequence[Path]) -> float | None:
    """The fraction that ``test`` is; None if it names files. Raises DataError for a number that is no fraction."""
    if len(test) > 1 or any(test[0] in (path.name, str(path)) for path in sources):
        return None
    with suppress(ValueError):
        if not 0 < (frac := float(test[0])) < 1:
            raise DataError(f"--test: expected files, or a fraction above 0 and below 1, got {test[0]}")
        return frac
    return None


def _named(option: str, word: str, sources: Sequence[Path]) -> Path:
    """The source with the name or path ``word``. Raises DataError unless there is one."""
    found = [path for path in sources if word in (path.name, str(path))]
    if len(found) == 1:
        return found[0]
    if found:
        raise DataError(f"{option}: {word}: expected one file, got {found[0]} and {found[1]}; give its path")
    hint = suggest(word, [path.name for path in sources])
    raise DataError(f"{option}: {word}: expected one of the files to prepare{hint}")
