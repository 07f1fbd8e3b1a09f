"""Rounds of a soak: each by its number, in a folder of its own, several at once; and their counts."""

import argparse
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._common import config_of, settings_of
from harness.config.yaml_file import to_yaml
from harness.core.seeds import generator

NUM_STEPS, BATCH_SIZE, JOB_H = 160, 8, 24.0
DEADLINE_S = 120.0
"""Of one run, which takes some seconds."""

_SAID_EVERY = 25  # rounds


@dataclass
class Verdict:
    """What a round counted, each under words of its own; and what was wrong."""

    counts: Counter[tuple[str, ...]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


Tried = Callable[[int, np.random.Generator, Path, Mapping[str, Any]], Verdict]
"""A round: its number, its generator, its folder, and the settings that all rounds share. It can be pickled."""


def rounds_parser(doc: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """The options of every soak of rounds."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--rounds", type=int, default=rounds, help=f"rounds (default: {rounds})")
    made.add_argument("--seed", type=int, default=1, help="of the rounds (default: 1)")
    made.add_argument("--first", type=int, default=0, help="number of the first round (default: 0)")
    made.add_argument("--jobs", type=int, default=1, help="rounds at once (default: 1)")
    return made


def carried_out(options: argparse.Namespace, stream: str, tried: Tried) -> Verdict:
    """Carry out the rounds; their counts added up. What is wrong is printed at once, with the number of its round.

    ``stream``: of the generators; a round is the same whatever rounds come before it.
    """
    total, began_s = Verdict(), time.monotonic()
    context = multiprocessing.get_context("fork")  # the imports are done, and no thread runs yet
    with tempfile.TemporaryDirectory() as name, ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        settings = settings_of(Path(name), [20] * 13 + [400] * 13, NUM_STEPS, batch_size=BATCH_SIZE)
        settings |= {
            "model": {"size": "tiny"},
            "profile": {"base": "busy", "job_h": JOB_H},
            "metrics": {"log_every_steps": 5},
        }
        numbers = range(options.first, options.first + options.rounds)
        common = {"stream": stream, "seed": options.seed, "tried": tried, "folder": Path(name), "settings": settings}
        verdicts = pool.map(partial(_round, **common), numbers)
        for done, (number, verdict) in enumerate(zip(numbers, verdicts, strict=True), start=1):
            wrong = [f"round {number}: {words}" for words in verdict.wrong]
            total.counts += verdict.counts
            total.wrong += wrong
            sys.stderr.write("".join(f"{words}\n" for words in wrong))
            if done % _SAID_EVERY == 0:
                pace_s = (time.monotonic() - began_s) / done
                sys.stderr.write(f"{done} of {len(numbers)} rounds, {pace_s:.1f} s each, {len(total.wrong)} wrong\n")
    return total


def _round(number: int, *, stream: str, seed: int, tried: Tried, folder: Path, settings: Mapping[str, Any]) -> Verdict:
    own = folder / f"round{number}"
    own.mkdir()
    verdict = tried(number, generator(seed, stream, number), own, settings)
    shutil.rmtree(own)
    return verdict


def write_config(folder: Path, *settings: Mapping[str, Any]) -> Path:
    """The file of a config."""
    path = folder / "config.yaml"
    path.write_text(to_yaml(config_of(*settings).model_dump(mode="json", exclude={"out", "name"})))
    return path
