"""`run.py measure`: prices of this machine, as a file that the key `profile` takes."""

# ruff: noqa: PLC0415 - torch is imported where it is needed, so that a wrong key is reported at once

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Column, Table

from harness.cli import console
from harness.cli.progress import amount_progress
from harness.cli.trace_commands import refuse_to_overwrite
from harness.config.combinations import refuse_combinations
from harness.config.experiment import load_each
from harness.config.model import Config
from harness.config.profiles import PROFILES
from harness.config.words import suggest
from harness.config.yaml_file import to_yaml
from harness.core.errors import ConfigError
from harness.core.strategies import STRATEGIES
from harness.files import write_text

if TYPE_CHECKING:
    from harness.run.measure import Line
    from harness.run.spec import RunSpec
    from harness.run.turns import Estimate, StepPrice, Subject

_STEPS = 5_000


def measure(options: argparse.Namespace) -> None:
    """Measure the prices with the data, the model and the batches of a configuration, and write them."""
    refuse_to_overwrite(options.out, options.config, force=options.force)
    if options.out.suffix != ".yaml":
        raise ConfigError(f"--out: expected FILE.yaml, as the key profile takes it, got {options.out}")
    for name in options.strategies:
        if name not in STRATEGIES:
            raise ConfigError(f"--strategies: unknown strategy {name!r}{suggest(name, STRATEGIES)}")
    configs = load_each(options.config, options.overrides, STRATEGIES)
    from harness.run import assemble
    from harness.run.measure import measure_detection, measure_saves
    from harness.run.spec import RunSpec
    from harness.run.turns import CHUNK_STEPS, measure_step, subjects_of

    parts = _parts_of({name: RunSpec(config) for name, config in configs.items()}, options.strategies)
    if free := [name for name in options.strategies if not parts[name]]:
        raise ConfigError(f"--strategies: expected strategies for which every step pays, got {', '.join(free)}")
    subjects = subjects_of(parts, options.strategies or parts)
    subjects = [subject for subject in subjects if _fits(configs, subject, is_named=bool(options.strategies))]
    spec = RunSpec(configs["partial"])
    if spec.config.trainer.device != "cpu":
        raise ConfigError(f"trainer.device: expected cpu, got {spec.config.trainer.device}; processor time is measured")
    most = spec.num_steps // CHUNK_STEPS - 1
    if most < 1:
        raise ConfigError(f"data.path: expected samples of at least {2 * CHUNK_STEPS} steps, got {spec.num_steps}")
    if options.steps is not None and options.steps > most * CHUNK_STEPS:
        raise ConfigError(f"--steps: expected at most {most * CHUNK_STEPS} with these samples, got {options.steps}")
    rounds = min(most, max(1, (options.steps or _STEPS) // CHUNK_STEPS))
    spec.dataset.verify()
    assemble.prepare_fork_server()
    steps: list[StepPrice] = []
    with tempfile.TemporaryDirectory(prefix="measure-") as name:
        folder = Path(name)
        with amount_progress("detection") as done:  # the first, since its processes are forked
            detection = measure_detection(spec.config, options.kills, folder / "detection", done)
        for subject in subjects:
            with amount_progress(subject.part) as done:
                price = measure_step(
                    configs,
                    subject,
                    job_samples=options.job_samples,
                    rounds=rounds,
                    done=lambda number, done=done: done(number, rounds),
                )
            steps.append(price)
        with amount_progress("saves") as done:
            save, load = measure_saves(spec.config, options.rounds, folder / "saves", done)
    values = constants(options.out.stem, spec.config, steps=steps, save=save, load=load, detection=detection)
    lines = [
        options.command_line,
        *_facts(spec, rounds * CHUNK_STEPS, options.job_samples),
        *map(_of_step, steps),
        *_of_files(save, load),
        f"detection of a death: {_shown(1e3 * detection)} ms",
    ]
    write_text(options.out.resolve(), "".join(f"# {line}\n" for line in lines) + to_yaml(values))
    _show(steps, lines[-3:])
    console.say(f"wrote {options.out}: a profile, for run.py plan {options.out}, or profile={options.out} in a run")


def _parts_of(specs: Mapping[str, "RunSpec"], named: Sequence[str]) -> dict[str, frozenset[str]]:
    """What the steps pay for, by strategy. Raises ConfigError for a strategy of ``named`` that the config excludes."""
    found: dict[str, frozenset[str]] = {}
    for name, spec in specs.items():
        try:
            refuse_combinations(spec.config, spec.strategy)
            found[name] = frozenset(spec.strategy.step_parts)
        except ConfigError as error:
            if name in named:
                raise
            console.note(f"note: {name} is left out: {error}")
    return found


def _fits(configs: Mapping[str, Config], subject: "Subject", *, is_named: bool) -> bool:
    """Whether the runs of a subject fit into the memory beside each other. Raises ConfigError if it ``is_named``."""
    from harness.run.needs import needs_of
    from harness.run.spec import RunSpec
    from harness.run.turns import quiet

    names = ["none", *{"none": None, subject.base: None, subject.strategy: None}]
    needed = sum(needs_of(RunSpec(quiet(configs[name]))).memory_bytes for name in names)
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    if needed <= free:
        return True
    words = f"expected {needed / 1e9:.1f} GB of free memory for runs of {', '.join(names)}, got {free / 1e9:.1f}"
    if is_named:
        raise ConfigError(f"--strategies: {words}")
    console.note(f"note: {subject.part} is left out: {words}")
    return False


def constants(
    name: str, config: Config, *, steps: Sequence["StepPrice"], save: "Line", load: "Line", detection: "Estimate"
) -> dict[str, Any]:
    """The keys of the profile to write: the profile of ``config`` with what was measured.

    A part of a step that noise hides is left out; parts that were not measured stay. A full save costs as many hours as
    before, of which the measured fraction is fixed. A load costs the hours of a full save times the measured ratio of a
    load to a save. What ``save`` or ``load`` cannot tell stays. Detection takes the seconds of this machine.
    """
    given, base = config.profile, config.profile.name.rstrip("*")
    base = base if base in PROFILES else next(iter(PROFILES))
    changed = {key: value for key, value in given if value != getattr(PROFILES[base], key)}
    save_h = given.o_save_h + given.o_save_fixed_h
    fracs = {**(given.step_frac or {}), **{price.subject.part: price.frac for price in steps}}
    measured: dict[str, Any] = {
        "name": name,
        "step_frac": {part: round(frac, 5) for part, frac in fracs.items() if frac is not None},
        "detect_death_h": round(detection.median / 3600, 8),
    }
    if save.has_fixed:
        fixed_h = save.fixed_frac.median * save_h
        measured |= {"o_save_fixed_h": round(fixed_h, 6), "o_save_h": round(save_h - fixed_h, 6)}
    if save.has_full and load.has_full:
        measured["o_load_h"] = round(save_h * load.full_s.median / save.full_s.median, 6)
    return {"base": base, **changed, **measured}


def _facts(spec: "RunSpec", num_steps: int, job_samples: int) -> Iterator[str]:
    from harness.record.code import environment

    config = spec.config
    facts = environment(num_threads=config.trainer.num_threads)
    yield (
        f"{facts['time']}, {facts['cpu']}, {facts['num_cores']} cores, load {facts['load_average'][0]}, torch "
        f"{facts['torch']}"
    )
    yield (
        f"{spec.num_rows:,} rows of {spec.footprint.row_width} values, batches of {config.trainer.batch_size}, "
        f"{config.num_ps} PS ranks, {config.trainer.num_threads} threads; {num_steps:,} steps of each run"
    )
    yield f"rows are chosen for a job of {job_samples:,} samples; [95 % intervals]"


def _of_step(price: "StepPrice") -> str:
    """A line of the file on a part: with what, and how often, rows are chosen."""
    part, strategy, base = price.subject
    touching, choosing, total, control = _percents(price)
    chosen = f", choosing {choosing} with a save every {price.steps_between:,} steps" if price.choosing else ""
    words = f"{part} ({strategy} less {base}): {total} % of a step of {1e3 * price.step_s:.2f} ms; touching {touching}"
    hidden = "; not twice what the control is off: no price" if price.frac is None else ""
    return f"{words}{chosen}; control {control}{hidden}"


def _percents(price: "StepPrice") -> list[str]:
    """Touching, choosing, both and the control, in % of a step."""
    values = (price.touching, price.choosing, price.total, price.control)
    return ["–" if each is None else _shown(100 * each) for each in values]


def _of_files(save: "Line", load: "Line") -> Iterator[str]:
    for name, line in (("save", save), ("load", load)):
        fixed = f"{_shown(1e3 * line.fixed_s)} ms fixed, {_shown(100 * line.fixed_frac)} % of it"
        unknown = not (line.has_full and (name == "load" or line.has_fixed))
        yield f"a full {name}: {_shown(line.full_s)} s, {fixed}" + "; not resolved: the profile's hours stay" * unknown


def _show(steps: Sequence["StepPrice"], lines: Sequence[str]) -> None:
    title = "% of a step of strategy none, processor time of all ranks; [95 % interval]"
    headings = ("part", "touching", "choosing", "both", "control", "price")
    table = Table(*(Column(each, justify="right") for each in headings), title=title, title_justify="left", box=None)
    for price in steps:
        shown = "unknown" if price.frac is None else f"{price.frac:.2%}"
        table.add_row(price.subject.part, *map(escape, _percents(price)), shown)
    console.show(table)
    for line in lines:
        console.say(line)


def _shown(value: "Estimate") -> str:
    return f"{value.median:.3g} [{value.low:.3g}, {value.high:.3g}]"
