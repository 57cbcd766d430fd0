"""From a sampler to the cohort of a round."""

from dataclasses import replace
from typing import Literal, Protocol

import numpy as np

from fl_lightning import theory
from fl_lightning.parts.bases import Sampling
from fl_lightning.parts.memory import Remembers
from fl_lightning.parts.protocols import Forecast, Probe
from fl_lightning.parts.traits import SamplerTraits, forwards
from fl_lightning.samplers import Drawing, Sampler, WithReplacement
from fl_lightning.samplers.sampler import among
from fl_lightning.theory.checks import one_of
from fl_lightning.types import BoolVector, Cohort, IntVector, Profiles, RoundResult, Vector

Absent = Literal["corrected", "replaced"]


class HasRounds(Protocol):
    """A run that knows how many rounds it will have."""

    rounds: int  # R


@forwards(Remembers, "sampler")
class Selection(Sampling):
    r"""Draws the clients of each round by a sampler.

    Where clients cannot be drawn in all rounds, ``absent`` decides what becomes of their share:

    .. math::
        \mathrm{replaced:} \quad & p_m = \frac{s_m I_m}{\sum_j s_j I_j} \\
        \mathrm{corrected:} \quad & p_m = \frac{s_m I_m}{\sum_j s_j I_j}, \quad
            c_m \leftarrow c_m \frac{\sum_j s_j I_j}{\sum_j s_j a_j}, \quad
            s\ \mathrm{made\ for}\ \frac{w_m}{\max(a_m, 1/L)}

    with I who can be drawn and a how often. Those who replace others count more when few are there, so that Omega
    depends on who is there together with whom. The corrected step is shorter when few are there: a client adds on
    average what it would add if it were always there. Where fewer than K can be drawn, as many are drawn as there are.

    Args:
        sampler: Returns the probabilities.
        clients_per_round: K, as a number of draws (6) or as a share of the clients (0.3; 1.0 is all of them, 1 is one).
        drawing: How the draws are made; by default the sampler's own way, which for most of them is ``Systematic``:
            distinct clients as far as K p <= 1. The paper's independent draws are ``WithReplacement``; K distinct
            clients one after another by p, which changes Omega, ``Successive``.
        absent: ``corrected`` (L is infinite) or ``replaced``, or the number L: nobody is counted for more than L rounds
            of absence, so that a client that is there once in a thousand rounds does not make a step of a thousand.
            That leaves a bias, :math:`\Omega_m \propto w_m \min(1, L a_m)`. By default ``replaced``, as with
            ``Successive``; for samplers that promise :math:`\Omega = w` (FedACS and the consistent ones)
            ``corrected``, with the L of :func:`fl_lightning.theory.absence_limit` where few clients are so rare that
            they would make steps random.
    """

    def __init__(
        self,
        sampler: Sampler,
        clients_per_round: int | float = 0.3,
        drawing: Drawing | None = None,
        absent: Absent | float | None = None,
    ) -> None:
        if isinstance(absent, int | float):
            if not 1 <= absent < float("inf"):
                raise ValueError(f"absent={absent} must be at least 1 round of absence, or 'corrected' or 'replaced'")
        elif absent is not None:
            one_of("absent", absent, Absent)
        if absent not in (None, "replaced") and drawing is not None and not drawing.keeps_shares:
            raise ValueError(
                f"absent={absent!r} needs draws with E[n] = K p, which {type(drawing).__name__} does not keep: use "
                "Systematic, or absent='replaced'"
            )
        if not clients_per_round > 0 or (clients_per_round > 1 and clients_per_round % 1):
            raise ValueError(
                f"clients_per_round={clients_per_round} must be a number of clients (at least 1) or a share in (0, 1)"
            )
        self.sampler = self.wrapped = sampler
        self.clients_per_round = clients_per_round
        self.drawing = drawing
        self.absent = absent

    @property
    def traits(self) -> SamplerTraits:
        """What other parts must know of it: what they must know of its sampler."""
        return self.sampler.traits

    @property
    def way_of_drawing(self) -> Drawing | None:
        """How the draws are made; None where the sampler has a way of its own."""
        return self.sampler.drawing if self.drawing is None else self.drawing

    def num_draws(self, num_clients: int) -> int:
        """Return K."""
        return self.sampler.num_draws(number_of(self.clients_per_round, num_clients), num_clients)

    def start(self, forecast: Forecast) -> None:
        """Let the sampler look at typical rounds."""
        self.sampler.start(forecast)

    def arrange(self, profiles: Profiles, index: int, seed: int) -> IntVector:
        """Return T that clients are asked for in a round, (M,)."""
        steps, offered = profiles.num_steps, profiles.conditions.offered_steps
        asked = self.sampler.asked_steps(_of_reachable(profiles), self._num_there(profiles))
        wrong = np.empty(0) if asked is steps else np.flatnonzero((asked < 1) | (asked > offered))
        if len(wrong):
            client = int(wrong[0])
            raise ValueError(
                f"{type(self.sampler).__name__}.asked_steps asks client {client} for {asked[client]} local steps, but "
                f"it offers {offered[client]}: ask for at least 1 and at most conditions.offered_steps"
            )
        return asked

    def ask(self, profiles: Profiles, probe: Probe | None, rng: np.random.Generator) -> None:
        """Let the sampler ask clients."""
        if probe is None:
            raise ValueError(
                f"{type(self.sampler).__name__} asks clients before it draws, but there is nobody to ask: "
                "give Planner.plan a probe, or use a sampler that asks nothing"
            )
        self.sampler.prepare(_of_reachable(profiles), self._num_there(profiles), probe, rng)

    def expected_cohort(self, profiles: Profiles) -> Cohort:
        """Return the probabilities of the draw without drawing."""
        conditions = profiles.conditions
        if conditions.available is not None and conditions.presence is not None and self._corrects:
            return self._corrected(profiles, conditions.available, conditions.presence)
        num_draws = self._num_there(profiles)
        seen = _of_reachable(profiles)
        probabilities = self.sampler.probabilities(seen, num_draws)
        if profiles.available is not None:
            probabilities = among(probabilities, profiles.available)
            num_draws = min(num_draws, int(np.count_nonzero(probabilities)))
        nominal = self._undrawn(probabilities, self.sampler.coefficients(seen, probabilities), num_draws)
        if self.drawing is None or self.drawing.keeps_shares:
            return nominal
        shares = self.drawing.shares(probabilities, num_draws)
        coefficients = self.sampler.coefficients(seen, shares)
        return replace(nominal, probabilities=shares, coefficients=coefficients, nominal=nominal)

    @property
    def _corrects(self) -> bool:
        """Whether the step is shorter when few are there."""
        return self.traits.consistent and self._keeps_shares if self.absent is None else self.absent != "replaced"

    @property
    def _keeps_shares(self) -> bool:
        return self.drawing is None or self.drawing.keeps_shares

    def _num_there(self, profiles: Profiles) -> int:
        """Return K, or how many clients of any weight can be drawn where these are fewer."""
        num_draws = self.num_draws(profiles.num_clients)
        if profiles.available is None:
            return num_draws
        return min(num_draws, int(np.count_nonzero(profiles.reachable_weights)))

    def _undrawn(self, probabilities: Vector, coefficients: Vector, num_draws: int) -> Cohort:
        return Cohort(
            probabilities=probabilities,
            coefficients=coefficients,
            counts=np.zeros(len(probabilities), dtype=np.int64),
            num_draws=num_draws,
            scope=self.traits.scope,
            with_replacement=isinstance(self.way_of_drawing, WithReplacement),
        )

    def _corrected(self, profiles: Profiles, available: BoolVector, presence: Vector) -> Cohort:
        """Return a cohort whose step is shorter when few are there."""
        longest = np.inf if self.absent == "corrected" else self.absent
        if not isinstance(longest, int | float):
            longest = theory.absence_limit(profiles.weights, presence)
        counted = np.maximum(presence, 1 / longest)
        weights = np.divide(profiles.weights, counted, out=np.zeros_like(counted), where=presence > 0)
        always = replace(profiles.conditions, available=None, presence=None)
        seen = replace(profiles, conditions=always, weights=weights / weights.sum())
        num_draws = self.num_draws(profiles.num_clients)
        wanted = self.sampler.probabilities(seen, num_draws)
        coefficients = self.sampler.coefficients(seen, wanted)
        average = self._undrawn(presence * wanted / float(presence @ wanted), coefficients, num_draws)
        there = max(float(wanted[available].sum() / (presence @ wanted)), 1e-12)
        probabilities = among(wanted, available)
        return replace(
            average,
            probabilities=probabilities,
            coefficients=coefficients * there,
            num_draws=min(num_draws, int(np.count_nonzero(probabilities))),
            there=there,
            average=average,
        )

    def configure_cohort(self, expected: Cohort, rng: np.random.Generator) -> Cohort:
        """Return who takes part in this round."""
        draw = self.sampler.draw if self.drawing is None else self.drawing
        probabilities = (expected.nominal or expected).probabilities
        return replace(expected, counts=draw(probabilities, expected.num_draws, rng))

    def on_federation_start(self, loop: HasRounds) -> None:
        """Let the sampler know how long the run will be."""
        self.sampler.run_length = loop.rounds

    def on_round_end(self, loop: object, result: RoundResult) -> None:
        """Let the sampler learn from what was delivered."""
        self.sampler.observe(result)


def _of_reachable(profiles: Profiles) -> Profiles:
    """Return what a sampler sees: clients that cannot be drawn have no weight."""
    return profiles if profiles.available is None else replace(profiles, weights=profiles.reachable_weights)


def number_of(wanted: int | float, num_clients: int) -> int:
    """Return how many clients are wanted, given as a number or as a share of them.

    >>> number_of(6, 20), number_of(0.3, 20), number_of(1, 20), number_of(1.0, 20)
    (6, 6, 1, 20)
    """
    share = isinstance(wanted, float) and wanted <= 1
    return max(1, round(wanted * num_clients)) if share else int(wanted)
