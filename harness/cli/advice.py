"""`run.py plan --advise`: which strategy costs least below a margin of PLS, and what would change that."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from harness.cli import console
from harness.core.plans import Costs
from harness.core.strategies import StrategyOptions
from harness.planning.advice import MAX_FACTOR, Standing, advise, best_of, turns
from harness.planning.simulate import Job
from harness.planning.spread import Spread, Summary, simulate_all
from harness.traces.spec import GeneratorSpec

_COLUMNS = ("strategy", "overhead, h", "more, h", "node-hours", "PLS", "samples lost, M", "repeated, h")
_MOST_TRACES, _MOST_DEATHS = 300, 3_000  # for a factor


def show_advice(
    spreads: Sequence[Spread],
    strategies: Sequence[StrategyOptions],
    job: Job,
    spec: GeneratorSpec,
    *,
    seed: int,
    margin: float,
) -> None:
    """Print the table and the sentences of the advice."""
    costs, num_traces = job.costs, len(spreads[0].outcomes)
    advice = advise(spreads, strategies, costs, margin)
    title = f"{num_traces:,} traces, means with 95 % confidence intervals (≥: parts have no price)"
    console.show_numbers(title, _COLUMNS, (_row(standing, costs) for standing in advice))
    if not (best := best_of(advice)):
        console.say(f"advice: none; no strategy without unknown prices is shown to have a PLS of at most {margin:g}")
        return
    for line in _answer(advice, [each.name for each in best], costs, margin):
        console.say(line)

    def at(mtbf: float = 1.0, o_save: float = 1.0) -> list[Standing]:
        changed = replace(costs, mtbf_h=mtbf * costs.mtbf_h, o_save_h=o_save * costs.o_save_h)
        rarer, other = spec.rarer(mtbf), replace(job, costs=changed)
        most = max(2, min(num_traces, _MOST_TRACES, round(_MOST_DEATHS / rarer.expected_instants)))
        under = simulate_all(strategies, other, rarer, most, seed, on_progress=lambda *_: None)
        return advise(under, strategies, changed, margin)

    mtbf_h = spec.instant_mtbf_h * spec.job_h / spec.length_h
    for name, value, unit, changed in (
        ("MTBF", mtbf_h, " h", lambda factor: at(mtbf=factor)),
        ("O_save", costs.o_save_h * 60, " min", lambda factor: at(o_save=factor)),
        ("margin", margin, "", lambda factor: advise(spreads, strategies, costs, factor * margin)),
    ):
        texts = [
            f"from {value * factor:.3g}{unit} {'up' if factor > 1 else 'down'} (× {factor:.2g}) {' or '.join(names)}"
            for factor, names in turns(best[0].name, changed)
        ]
        console.say(
            f"{name} {value:.3g}{unit}: {'; '.join(texts) or f'no other from × 1/{MAX_FACTOR} to × {MAX_FACTOR}'}"
        )


def _row(standing: Standing, costs: Costs) -> Iterator[str]:
    bound = "≥ " * bool(standing.unpriced)
    yield standing.name
    yield from (bound + _mean(each) for each in (standing.hours, standing.more_h))
    yield "?" if standing.node_h is None else bound + _mean(standing.node_h)
    yield _mean(standing.pls) + " > margin" * (not standing.is_safe)
    yield _mean(standing.pls, costs.total_samples / 1e6)
    yield _mean(standing.repeated_h)


def _mean(summary: Summary, unit: float = 1.0) -> str:
    return f"{round(summary.mean * unit, 9):.3g} ± {round(summary.half * unit, 9):.2g}"


def _answer(advice: Sequence[Standing], names: Sequence[str], costs: Costs, margin: float) -> Iterator[str]:
    """The best strategy, those tied with it or the next one, and those that may be cheaper, as parts have no price."""
    best, *others = advice
    node_h = "unknown (profile.num_trainers)" if best.node_h is None else _mean(best.node_h)
    overhead = f"{_mean(best.hours)} h of overhead ({best.hours.mean / costs.job_h:.2%} of the job)"
    yield f"advice: {best.name}: {overhead}, node-hours {node_h}, PLS {_mean(best.pls)}, margin {margin:g}"
    if names[1:]:
        yield f"tied, not shown to cost more (95 %, in pairs): {', '.join(names[1:])}"
    elif others and others[0].is_safe and not others[0].unpriced:
        yield f"next: {others[0].name}, {_mean(others[0].more_h)} h more (95 %, in pairs)"
    for each in others:
        if each.is_safe and each.unpriced and (most_h := -each.more_h.mean) > 0:
            what = f"the {' and '.join(each.unpriced)}, whose price is unknown,"
            yield f"or {each.name}, if {what} cost below {most_h:.3g} h ({most_h / costs.job_h:.2%} of the job)"
