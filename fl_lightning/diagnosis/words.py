"""A diagnosis as a table, and what follows from it in plain words."""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table

from fl_lightning.diagnosis.objective import (
    CONSISTENT,
    Diagnosis,
    Recommendation,
    class_shares,
    distortion,
    neglected,
    number_ranges,
    soonest,
)
from fl_lightning.diagnosis.regime import Regime
from fl_lightning.theory.checks import Vector

WIDE = 150
PLANNED = "as planned"
MEASURED = "as measured"
VOTES = (
    "These are votes, the share of each client in a step, and not an objective, which nobody knows: {}. Votes hold as "
    "far as clients' gradients are equally clear (docs/votes.md). To train by them: --loop.solver.votes true."
)
_COMPARED = 3  # algorithms that the recommended one is compared with
_NARROW = ("L1", "favours", "forgets", "cost")


def averaged(choice: Recommendation) -> str:
    """Return what averaging over rounds does to the variance, in words."""
    variance = choice.best.variance
    rest = f" (V of {choice.name}: {variance:.2f} becomes {choice.share * variance:.2f})"
    return (
        f"The model averaged over rounds keeps {100 * choice.share:.0f} % of the variance, where the loss has "
        f"curvature 1{rest if np.isfinite(variance) else ''}; it keeps all of the bias."
    )


def table_of(
    found: Sequence[Diagnosis], unknown: Sequence[str], title: str, width: int, choice: Recommendation
) -> Table:
    """Return the table; where the terminal is narrow, without the columns that explain others."""
    wide = width >= WIDE - 20
    mine = "votes from your weights" if choice.best.votes else "objective from yours"
    explained = {
        "L1": f"distance of its {mine}, 0 to 2"
        + ", ~: approximate" * any(each.bounded for each in found)
        + ", with control variates at most" * any("AdaptiveControlVariates" in each.bounded for each in found),
        "step": "relative to FedAvg, before calibration",
        "V": "variance of a draw",
        "cost": f"local steps for equal progress, relative to {choice.name}; -: changed by memory",
    }
    costs = {each.name: choice.cost(each) for each in found}
    cells = {each.name: _cells(each, costs[each.name]) for each in found}
    shown = [name for name in cells[found[0].name] if wide or name in _NARROW]
    table = Table(
        title=title,
        caption=". ".join(f"{name}: {text}" for name, text in explained.items() if name in shown) + ".",
        title_justify="left",
        caption_justify="left",
        header_style="bold",
        box=box.HEAVY_HEAD if wide else box.SIMPLE_HEAD,
        padding=(0, 1) if wide else (0, 1, 0, 0),
    )
    table.add_column("algorithm", no_wrap=True)
    for name in shown:
        table.add_column(name, justify="right", no_wrap=not wide)
    table.add_column("must be known or kept")

    def rank(one: Diagnosis) -> tuple[bool, float, bool, float]:
        return one is not choice.best, round(one.distance, 3), not costs[one.name] < np.inf, costs[one.name]

    for each in sorted(found, key=rank):
        style = "green" if each.consistent else ""
        table.add_row(each.name, *(cells[each.name][name] for name in shown), str(each.needs), style=style)
    for name in unknown:
        table.add_row(name, *["?"] * len(shown), "depends on the data", style="dim")
    return table


def _cells(each: Diagnosis, cost: float) -> dict[str, str]:
    favoured, forgotten = (f"{client} (x{each.ratios[client]:.2g})" for client in (each.favoured, each.forgotten))
    return {
        "L1": f"{'~' * bool(each.bounded)}{each.distance:.3f}",
        "chi²": f"{each.chi_square:.3f}",
        "chi² per round": f"{each.round_chi_square:.2f}",
        "favours": "nobody" if each.consistent else favoured,
        "forgets": "nobody" if each.consistent else forgotten,
        "step": f"{each.step_length:.2f}",
        "steps per round": f"{each.work:.1f}",
        "s per round": _shown(each.seconds, 1),
        "kB up / down": f"{_shown(each.uplink_bytes / 1000)} / {_shown(each.downlink_bytes / 1000)}",
        "V": _shown(each.variance, 2),
        "cost": _shown(cost, 2),
    }


def _shown(value: float, digits: int = 0) -> str:
    return f"{value:.{digits}f}" if np.isfinite(value) else "-"


def _soonest(found: Sequence[Diagnosis], share: float) -> list[str]:
    ranked = soonest(found, share)
    if not ranked:
        return []
    first, *others = ((each, each.seconds * each.rounds(share)) for each in ranked)
    compared = ", ".join(f"{each.name} x{time / first[1]:.2g}" for each, time in others[:3])
    lines = [
        f"Soonest on the clock, by forecast: [bold]{first[0].name}[/], {_shown(first[0].seconds, 1)} s per round"
        + (f"; the same consistent progress takes {compared} the time." if compared else ".")
    ]
    if first[0].needs.stale and not first[0].needs.anonymous:
        lines.append(
            f"The forecast leaves out that uploads of {first[0].name} are old: at a learning rate that suits others, "
            "it may not learn at all (docs/cost.md). Try a quarter of loop.lr, and measure."
        )
    return lines


def verdict(found: Sequence[Diagnosis], choice: Recommendation, label_counts: npt.ArrayLike | None = None) -> list[str]:
    """Return in at most three lines what is wrong with FedAvg, what to take instead and why, and what it must know."""
    lines = []
    for each in found:
        if each.name == "fedavg" and each.consistent:
            does = "gives the votes" if each.votes else "optimises the objective"
            lines.append(f"FedAvg {does} you asked for: your clients are alike enough.")
        elif each.name == "fedavg":
            said = "; ".join(_distortions(each, label_counts))
            does = "give other votes" if each.votes else "optimise something else"
            lines.append(f"FedAvg would {does}{': ' + said if said else ''}.")
    return lines + _recommendation(choice)


def further(found: Sequence[Diagnosis], choice: Recommendation) -> list[str]:
    """Return what else follows: what to take where less is known, what is soonest, and what averaging does."""
    lines = _soonest(found, choice.share)
    if choice.unknowing is not None:
        lines.insert(
            0,
            f"If nobody knows q and work beforehand: [bold]{choice.unknowing.name}[/] ({choice.unknowing.needs}), or "
            "FedACS with --loop.sampling.sampler.knowledge estimated, which learns them.",
        )
    if choice.best.votes:
        lines.insert(0, VOTES.format(choice.best.votes))
    return [*lines, averaged(choice)]


def few(found: Sequence[Diagnosis], choice: Recommendation) -> list[Diagnosis]:
    """Return the algorithms that the verdict speaks of: FedAvg, the recommended one and what it is compared with."""
    others = [each for each in choice.consistent if each is not choice.best][:_COMPARED]
    kept = {choice.name, *(each.name for each in (*others, *soonest(found, choice.share)[:1]))}
    kept |= {"fedavg", "" if choice.unknowing is None else choice.unknowing.name}
    return [each for each in found if each.name in kept]


def document(
    found: Sequence[Diagnosis], unknown: Sequence[str], choice: Recommendation, regime: Regime | None = None
) -> dict[str, object]:
    """Return a diagnosis for programs: plain numbers, all algorithms."""
    by_time = soonest(found, choice.share)
    rows = [
        {
            "name": each.name,
            "consistent": each.consistent,
            "distance": each.distance,
            "chi_square": each.chi_square,
            "local_steps": each.work,
            "seconds": each.seconds,
            "variance": each.variance,
            "cost": choice.cost(each),
            "must_know": str(each.needs),
            "approximate": bool(each.bounded),
            "votes" if each.votes else "effective_weights": each.effective_weights.tolist(),
        }
        for each in found
    ]
    return {
        "recommended": choice.name,
        "consistent": choice.best.consistent,
        "soonest_by_forecast": by_time[0].name if by_time else None,
        "weights": choice.best.weights.tolist(),
        "algorithms": rows,
        "unknown": list(unknown),
        "regime": None if regime is None else asdict(regime) | {"consistency": regime.verdict},
    }


def _distortions(each: Diagnosis, label_counts: npt.ArrayLike | None) -> list[str]:
    """Return which clients, and which classes if their counts are known, carry too little and too much."""
    whole = "votes" if each.votes else "objective"
    sentences = [distortion("clients", each.weights, each.effective_weights, whole)]
    if label_counts is not None:
        asked, given = (class_shares(values, label_counts) for values in (each.weights, each.effective_weights))
        sentences.append(distortion("classes", asked, given, whole))
    return [sentence for sentence in sentences if sentence]


def _recommendation(choice: Recommendation) -> list[str]:
    best = choice.best
    if not best.consistent:
        which = "None of these algorithms" if not choice.remembering else "No algorithm without memory of clients"
        does = "gives the votes you asked for" if best.votes else "optimises your objective"
        lines = [
            f"{which} {does}. Nearest: [bold]{best.name}[/], at distance {best.distance:.3f}: {_underweighted(best)}; "
            f"{best.name} must know: {best.needs}."
        ]
        if best.unlimited > best.absence:
            lines.append(
                f"It counts nobody for very long absences. --loop.sampling.absent corrected does, and Omega is yours; "
                f"but then rare clients make the variance of a step {best.unlimited:.1f} times its squared length "
                f"({best.absence:.1f} as it is)."
            )
        if choice.remembering:
            names = ", ".join(f"{each.name} ({each.needs})" for each in choice.remembering[:_COMPARED])
            lines.append(f"Yours, with memory: {names}.")
        return lines
    others = [f"{each.name} x{choice.cost(each):.2f}" for each in choice.consistent if each is not best][:_COMPARED]
    compared = f": {', '.join(others)}" if others else ""
    does = "gives the votes" if best.votes else "optimises the objective"
    promise = f"It {does} you asked for"
    if best.bounded:
        promise = f"It nearly {does} you asked for (how nearly {', '.join(best.bounded)} leaves open)"
    return [
        f"Recommended: [bold green]{best.name}[/]. {promise}, and the other consistent "
        f"algorithms here need no fewer local steps for equal progress{compared}.",
        f"It must know: {_in_words(best)}",
    ]


def _underweighted(each: Diagnosis) -> str:
    """Return which clients count for less than they should, and how much."""
    few = np.flatnonzero(each.ratios < 1)
    shares = [f"{100 * float(values[few].sum()):.0f} %" for values in (each.weights, each.effective_weights)]
    named = number_ranges(few)
    subject = f"clients {named}" if len(named) <= 30 else f"{len(few)} of {len(each.weights)} clients"
    return f"{subject} carry {shares[0]} of the weight and {shares[1]} of its objective"


def _in_words(each: Diagnosis) -> str:
    words = {"q": "failure rates", "work": "local work", "answers": "answers", "presence": "presence"}
    named = {"q": "its client's failure rate", "work": "the work behind it", "name": "who sent it"}
    before = " and ".join(words[name] for name in each.needs.before_draw)
    before += " (how often each can be drawn)" * ("presence" in each.needs.before_draw)
    uploads = " and ".join(named[name] for name in each.needs.with_upload)
    parts = [
        f"the {before} of all clients before it draws" if before else "",
        f"with each upload {uploads}" if uploads else "not who sent what",
        each.needs.memory,
    ]
    return "; ".join(part for part in parts if part) + "."


def of_run(factors: Vector | None, found: Sequence[Diagnosis], label_counts: npt.ArrayLike | None = None) -> list[str]:
    """Return in plain words what the factors that a run measured of its clients, if any, do to its objective.

    ``found`` is what is known of the run as planned and as measured.
    """
    if factors is None:
        ending = ": the objective is the planned one." if found else "."
        return [f"Nothing on the way of the updates measured a factor{ending}"]
    least, most = int(np.argmin(factors)), int(np.argmax(factors))
    lines = [
        f"Clipping left x{factors.mean():.2f} of what clients sent on average: least of client {least} "
        f"(x{factors[least]:.2f}), most of client {most} (x{factors[most]:.2f})."
    ]
    by_name = {each.name: each for each in found}
    if len(by_name) < 2:
        return lines
    lines.append(
        f"That moves the objective: its distance (L1) from yours is {by_name[PLANNED].distance:.3f} as planned and "
        f"{by_name[MEASURED].distance:.3f} as measured."
    )
    return [*lines, *(f"As measured, {sentence}." for sentence in _distortions(by_name[MEASURED], label_counts))]


def unknown_line(parts: Sequence[str]) -> str:
    """Return in one line that a run's objective is not known.

    >>> unknown_line(["Krum"])
    'objective: not known, because what Krum does to it depends on the data'
    """
    return f"objective: not known, because what {' and '.join(parts)} does to it depends on the data"


def objective_line(weights: Vector, fedavg: Vector, own: Vector, names: Sequence[str] = (), votes: bool = False) -> str:
    """Return in one line what was asked for (w), what FedAvg would have optimised and what a run did (Omega, or votes).

    Clients are called by their names where there are any.

    >>> w = np.array([0.25, 0.25, 0.5])
    >>> objective_line(w, np.array([0.02, 0.08, 0.9]), w)
    'objective: clients 0-1 should carry 50 %; FedAvg would have given them 10 %, this run gave them 50 %'
    """
    few = neglected(weights, fedavg)
    alike, faithful = (float(np.abs(own - other).sum()) < CONSISTENT for other in (fedavg, weights))
    word, did = ("votes", "given") if votes else ("objective", "optimised")
    if not len(few):
        what = "what you asked for" if faithful else "something else than you asked for"
        return f"{word}: FedAvg would have {did} what you asked for; this run {'gave' if votes else did} {what}"
    named = number_ranges(few)
    if names:
        named = ", ".join("".join(filter(str.isprintable, names[client])) for client in few)
    subject = f"client{'s' * (len(few) > 1)} {named}" if len(named) <= 30 else f"{len(few)} of {len(weights)} clients"
    shares = [f"{float(values[few].sum()):.0%}".replace("%", " %") for values in (weights, fedavg, own)]
    others = f"FedAvg would have given them {shares[1]}, this run gave them {shares[2]}"
    if alike:
        others = f"this run, like FedAvg, gave them {shares[2]}"
    return f"{word}: {subject} should carry {shares[0]}; {others}"
