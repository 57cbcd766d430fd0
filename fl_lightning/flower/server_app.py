"""The ServerApp: the federated loop as it is, with an engine that lets nodes train."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from typing_extensions import override

from fl_lightning.aggregators.secure import sum_of
from fl_lightning.config import building
from fl_lightning.config import compose as configs
from fl_lightning.engine.replay import TrainsElsewhere
from fl_lightning.flower import messages
from fl_lightning.flower.messages import BadMessageError, Content, Reply, read_metrics, read_reply, read_sender
from fl_lightning.flower.nodes import NodesData, Questions, Roster
from fl_lightning.flower.options import Options, read_options, stored_sizes
from fl_lightning.flower.secure_server import SecureTraining
from fl_lightning.flower.supernode import version_note
from fl_lightning.flower.task import Task, check_deployable
from fl_lightning.parts.memory import Remembers
from fl_lightning.parts.protocols import PLAIN, Engine, Federation, Handout
from fl_lightning.solvers import Solver
from fl_lightning.system.traces import Delivery
from fl_lightning.types import IntVector, ModelState, RoundPlan, Updates, Vector

CONFIG = "config.yaml"  # in the app

app = ServerApp()


class FlowerEngine(Remembers, TrainsElsewhere):
    """Lets nodes train and answer; a node that is absent, late or talks nonsense counts as lost.

    A reply is believed only in its form: its length, and T within the allowed range. Numbers that are not finite are
    left to the loop's ``faults``.

    Args:
        questions: To the nodes.
        task: What nodes must know to train.
        max_steps: Up to which clients decide about T themselves; None: they do what they are asked.
        local: Evaluates here, and holds the model.
        sums: Finds the sum of updates that nobody sees; without it clients send their updates as they are.
    """

    memory = ("sizes",)

    def __init__(
        self, questions: Questions, task: Task, max_steps: int | None, local: Engine, sums: SecureTraining | None = None
    ) -> None:
        super().__init__(local)
        self.questions = questions
        self.task = task
        self.max_steps = max_steps
        self.sums = sums
        self.deliveries: list[Delivery] = []  # of the last round
        self.sizes: IntVector = np.empty(0, dtype=np.int64)

    def setup(
        self,
        fabric: Fabric,
        module: LightningModule,
        federation: Federation,
        solver: Solver,
        batch_size: int,
        seed: int,
        num_draws: int | None = None,
    ) -> ModelState:
        """Bind the engine to a module and return the initial state."""
        self.sizes = federation.sizes
        self._text = self.task.text(num_draws)
        return self.local.setup(fabric, module, federation, solver, batch_size, seed, num_draws)

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the sizes, and who was absent when they were asked for."""
        assumed = sorted(self.questions.roster.assumed)
        return super().state_dict() | ({"assumed": assumed} if assumed else {})

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Refuse to resume a run in which a client had more or fewer examples."""
        here = self.sizes
        super().load_state_dict({name: value for name, value in state.items() if name != "assumed"})
        changed = np.flatnonzero(here != self.sizes)
        if len(changed):
            client = int(changed[0])
            raise ValueError(
                f"client {client} has {here[client]} examples, but had {self.sizes[client]} when the run was paused "
                f"({len(changed)} such clients): bring its data back, or start anew in another run_dir"
            )

    def train(self, state: ModelState, plan: RoundPlan, clients: IntVector, handout: Handout = PLAIN) -> Updates:
        """Let the clients train and return what arrives in time, in the given order."""
        planned = plan.profiles.num_steps

        def content(client: int) -> Content:
            tensors = {
                "weights": handout.start(client, state.weights),
                "buffers": handout.start_buffers(client, state.buffers),
            }
            shift = handout.gradient_shift(client)
            if shift is not None:
                tensors["shift"] = shift
            values = {"num_steps": int(planned[client]), "lr": float(plan.learning_rate)}
            return values | {"task": self._text}, tensors

        def check(client: int, num_steps: int) -> None:
            if self.max_steps is None and num_steps != planned[client]:
                raise BadMessageError(f"reports {num_steps} local steps, but was asked for {planned[client]}")
            if self.max_steps is not None and not 1 <= num_steps <= self.max_steps:
                raise BadMessageError(f"reports {num_steps} local steps, which is not in 1..{self.max_steps}")

        if self.sums is None:
            updates = self._plain(state, clients, plan.index, content, check)
        else:
            updates = self.sums.train(state, plan, clients, content, check)
        reported = dict(zip(updates.clients.tolist(), updates.num_steps.tolist(), strict=True))
        self._note(plan.index, clients, reported)
        return updates

    def _plain(
        self,
        state: ModelState,
        clients: IntVector,
        round_index: int,
        content: Callable[[int], Content],
        check: Callable[[int, int], None],
    ) -> Updates:
        likes = {"delta": state.weights, "buffers": state.buffers}

        def read(message: Message) -> Reply:
            reply = read_reply(message, likes)
            check(read_sender(message), reply.num_steps)
            return reply

        found = self.questions.ask(messages.TRAIN, round_index, clients.tolist(), content, read)
        replies = found.values()
        return Updates(
            clients=np.array(list(found), dtype=np.int64),
            deltas=_stacked([reply.tensors[0] for reply in replies], state.weights),
            buffers=_stacked([reply.tensors[1] for reply in replies], state.buffers),
            num_steps=np.array([reply.num_steps for reply in replies], dtype=np.int64),
            losses=np.array([reply.loss for reply in replies], dtype=np.float64),
        )

    def losses(self, state: ModelState, clients: IntVector, round_index: int) -> Vector:
        """Return the loss of the global model on the first batch of each client; NaN of those that do not answer."""
        replies = self._answers(messages.LOSS, state, clients, round_index, {})
        return np.array([np.nan if reply is None else reply.loss for reply in replies], dtype=np.float64)

    def gradients(self, state: ModelState, clients: IntVector, round_index: int) -> torch.Tensor:
        """Return the gradient of the first batch of each client; zeros of those that do not answer, (n, d)."""
        replies = self._answers(messages.GRADIENT, state, clients, round_index, {"gradient": state.weights})
        zeros = torch.zeros_like(state.weights)
        return _stacked([zeros if reply is None else reply.tensors[0] for reply in replies], state.weights)

    def _answers(
        self, kind: str, state: ModelState, clients: IntVector, round_index: int, likes: Mapping[str, torch.Tensor]
    ) -> list[Reply | None]:
        """Ask about the global model and return the replies in the order of the clients; None where there is none."""
        content: Content = ({"task": self._text}, {"weights": state.weights, "buffers": state.buffers})
        replies = self.questions.ask(
            kind, round_index, clients.tolist(), lambda client: content, lambda message: read_reply(message, likes)
        )
        self._note(round_index, clients, {client: reply.num_steps for client, reply in replies.items()})
        return [replies.get(client) for client in clients.tolist()]

    @override
    def evaluate_clients(self, state: ModelState, round_index: int, max_examples: int) -> list[dict[str, float]]:
        """Return the metrics of the global model on each client's own data; nothing of those that do not answer."""
        tensors = {"weights": state.weights, "buffers": state.buffers}
        content: Content = ({"task": self._text, "max_examples": max_examples}, tensors)
        clients = range(len(self.sizes))
        found = self.questions.ask(messages.EVALUATE, round_index, clients, lambda client: content, read_metrics)
        return [found.get(client, {}) for client in clients]

    def _note(self, round_index: int, clients: IntVector, reported: Mapping[int, int]) -> None:
        if self.deliveries and self.deliveries[0].round_index != round_index:
            self.deliveries = []
        number = self.deliveries[-1].question + 1 if self.deliveries else 0
        self.deliveries += [
            Delivery(
                round_index=round_index,
                question=number,
                client=client,
                arrived=client in reported,
                num_steps=reported.get(client, 0),
            )
            for client in clients.tolist()
        ]


def _stacked(rows: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    return torch.stack(rows) if rows else like.new_empty((0, len(like)))


def prepare(grid: Grid, merged: dict[str, Any], options: Options) -> building.Run:
    """Return a run of a configuration whose clients are nodes."""
    settings = building.parse(merged, [], options.trust)
    # Flower ends an app without any warning: what is not saved after a round is lost.
    settings.checkpoint.every_n_rounds = 1
    settings.checkpoint.min_seconds = 0.0
    run = building.build(settings, options.name)
    max_steps = options.max_steps or None
    check_deployable(run.loop, max_steps)
    stored, assumed = stored_sizes(run.run_dir)
    roster = Roster(grid, options.num_clients, stored, assumed)
    evaluation = run.loop.evaluate_clients
    task = Task(yaml.safe_load(run.config), 0.0 if evaluation is None else evaluation.held_out)
    questions = Questions(grid, roster, options.timeout)
    hidden = sum_of(run.loop.algorithm.aggregator)
    sums = None if hidden is None else SecureTraining(questions, hidden)
    engine = FlowerEngine(questions, task, max_steps, run.loop.engine, sums)
    return building.elsewhere(
        run, engine, NodesData(run.data, roster, options.start_timeout, options.needed(bool(stored)))
    )


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the app's configuration, or resume it in its folder."""
    from flwr.common.config import get_project_dir

    run = grid.run
    folder = Path(get_project_dir(run.fab_id, run.fab_version, run.fab_hash))
    options = read_options(context.run_config)
    if note := version_note():
        print(note, flush=True)
    deployed = prepare(grid, configs.read(folder / CONFIG), options)
    outcome = deployed.execute("auto")
    print(f"{deployed.run_dir}: {outcome}", flush=True)
