"""A Flower grid whose nodes are in this process: real messages, real apps, no network."""

from collections.abc import Callable, Iterable

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fl_lightning.flower.client_app import app


class InProcessGrid(Grid):
    """Nodes by number; each answers a message when its reply is asked for.

    ``lose(message)`` says whether a message is lost on its way; ``answer`` replaces the client app of some nodes.
    """

    def __init__(self, node_configs: Iterable[dict], lose: Callable[[Message], bool] = lambda message: False):
        self.nodes = {1000 + number: config for number, config in enumerate(node_configs)}
        self.answer: dict[int, Callable[[Message, Context], Message]] = {}
        self.lose, self.sent = lose, {}
        self.states: dict[int, RecordDict] = {}
        self.received: list[Message] = []  # all that the server ever gets
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # as a server process has it
        self.offline: set[int] = set()

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *arguments, **more):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError

    def get_node_ids(self):
        return [node for node in self.nodes if node not in self.offline]

    def push_messages(self, messages):
        keys = []
        for message in messages:
            key = f"message {len(self.sent)}"
            message.metadata.__dict__["_message_id"] = key
            self.sent[key] = message
            keys.append(key)
        return keys

    def pull_messages(self, message_ids):
        replies = []
        for key in message_ids:
            message = self.sent.get(key)
            node = None if message is None else message.metadata.dst_node_id
            if message is None or node in self.offline or self.lose(message):
                continue
            self.sent[key] = None
            state = self.states.setdefault(node, RecordDict())  # what a SuperNode keeps
            context = Context(1, node, self.nodes[node], state, {})
            replies.append(self.answer.get(node, app)(message, context))
        self.received += replies
        return replies
