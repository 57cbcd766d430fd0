"""Federated data sets of the Hugging Face Hub: a column says whose an example is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fl_lightning.data.federation import TensorFederation, between_0_and_1, cut_in_time
from fl_lightning.data.given import column_values
from fl_lightning.data.partitions import at_least_one, by_owner
from fl_lightning.data.shakespeare import CHARACTERS, encode
from fl_lightning.parts.bases import DataSource


class FromHub(DataSource):
    """A data set with a column of users: pictures or numbers with labels, or texts with the character behind each.

    Pictures become numbers in [0, 1] of shape (channels, height, width). Texts become codes of characters, as those of
    :class:`Shakespeare`, and their targets the codes one character later. Each client trains on its first examples and
    is tested on its last.

    Args:
        dataset: Name of a data set of the Hub, or a folder that ``save_to_disk`` wrote.
        client: Column of the user.
        inputs: Column of the pictures, numbers or texts.
        label: Column of the label, or of the character behind the text.
        root: Folder where what is fetched is kept.
        split: Of the data set.
        revision: Of the data set: a commit pins it.
        num_clients: Take the first so many clients, by name; all by default.
        min_size: Leave out clients with fewer examples.
        test_share: Of each client's examples.
    """

    def __init__(
        self,
        dataset: str,
        client: str,
        inputs: str,
        label: str,
        root: str = "datasets",
        split: str = "train",
        revision: str | None = None,
        num_clients: int | None = None,
        min_size: int = 2,
        test_share: float = 0.2,
    ) -> None:
        self.dataset, self.split = dataset, split
        self.revision, self.root = revision, root
        self.inputs, self.label = inputs, label
        self.client, self.min_size = client, at_least_one("min_size", min_size)
        self.num_clients = None if num_clients is None else at_least_one("num_clients", num_clients)
        self.test_share = between_0_and_1("test_share", test_share)
        self.class_names: Sequence[str] = ()  # known once it is loaded
        self.num_classes = 0

    def load(self, seed: int) -> TensorFederation:
        """Return the examples of the clients that are taken."""
        table = self._table()
        missing = [name for name in (self.client, self.inputs, self.label) if name not in table.column_names]
        if missing:
            columns = ", ".join(table.column_names)
            raise ValueError(f"{self.dataset} has no column {missing[0]!r}: its columns are {columns}")
        users, everybody = by_owner(column_values(table, self.client), self.min_size, f"value of {self.client!r}")
        parts = everybody[: self.num_clients]
        taken = table.select(np.concatenate(parts)).with_format(None)
        rows = np.split(np.arange(len(taken)), np.cumsum([len(part) for part in parts])[:-1])
        names = [str(user) for user in users[: self.num_clients]]
        examples = _examples(taken[self.inputs][:], taken[self.label][:])
        self.class_names = CHARACTERS if examples[1].ndim == 2 else getattr(table.features[self.label], "names", ())
        self.num_classes = len(self.class_names) or int(examples[1].max()) + 1
        return cut_in_time(examples, rows, self.test_share, names)

    def _table(self) -> Any:
        try:
            import datasets
        except ImportError:
            raise ImportError("FromHub needs datasets: pip install datasets") from None
        try:
            if Path(self.dataset).is_dir():
                return datasets.load_from_disk(self.dataset)
            folder = str(Path(self.root) / "huggingface")
            return datasets.load_dataset(self.dataset, split=self.split, revision=self.revision, cache_dir=folder)
        except Exception as error:  # of many libraries beneath
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise FileNotFoundError(
                f"{self.dataset} cannot be loaded ({reason}). Where the Hub is not reached, write it elsewhere with "
                "save_to_disk and give --data.dataset that folder"
            ) from None


def _examples(inputs: list[Any], labels: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(inputs[0], str):
        lengths = {len(text) for text in inputs}
        if len(lengths) != 1 or {len(text) for text in labels} != {1}:
            raise ValueError(
                f"texts must have one length and labels be one character, got lengths {sorted(lengths)[:5]}"
            )
        codes = torch.from_numpy(np.stack([encode(text + behind) for text, behind in zip(inputs, labels, strict=True)]))
        return codes[:, :-1].contiguous(), codes[:, 1:].contiguous()
    values = torch.from_numpy(np.stack([np.asarray(each) for each in inputs]))
    if hasattr(inputs[0], "getbands"):  # a picture
        values = values[:, None] if values.ndim == 3 else values.permute(0, 3, 1, 2)
        values = values.float().div_(255)
    return values.float(), torch.tensor(labels, dtype=torch.int64)
