"""Exercises of the shoulder, felt by a watch: a client is an arm of a person.

From the package ``seglearn`` (David Burns, 2018; BSD); the study is Burns et al., "Shoulder physiotherapy exercise
recognition" (2018).
"""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from fl_lightning.data.archives import PackageFile
from fl_lightning.data.federation import TensorFederation, between_0_and_1, cut_in_time
from fl_lightning.data.partitions import at_least_one, examples_of
from fl_lightning.parts.bases import DataSource

_PACKAGE = PackageFile(
    project="seglearn",
    name="seglearn-1.2.5-py3-none-any.whl",
    num_bytes=11_320_941,
    digest="ec6b952c85c9627050102854b372d85951563d3b990df677d7c55547e87413dd",
)
_HEADER = 128  # bytes before the pickle
_MEAN = (-0.008, 0.379, -0.147, 0.025, -0.002, 0.012)  # of acceleration and rotation along three axes each
_STD = (0.903, 0.494, 0.538, 0.982, 2.496, 1.052)


class Watch(DataSource):
    """Which of seven exercises is it? 20 clients: 10 people with two arms each.

    A window is an example. Of each exercise of a client the last windows are for the test, or, with ``test_people``,
    all windows of people nobody trains on.

    Args:
        root: Folder of the data; fetched into it when absent.
        length: Samples of a window, 50 of which are a second; windows do not overlap.
        test_share: Of each client's windows.
        test_people: How many people are kept for the test; then ``test_share`` is not used.
    """

    num_classes = 7
    class_names = ("PEN", "ABD", "FEL", "IR", "ER", "TRAP", "ROW")

    def __init__(
        self, root: str = "datasets", length: int = 100, test_share: float = 0.2, test_people: int = 0
    ) -> None:
        if not 0 <= test_people < 10:
            raise ValueError(f"test_people must lie between 0 and 9, got {test_people!r}: there are 10 people")
        self.root, self.length = root, at_least_one("length", length)
        self.test_share, self.test_people = between_0_and_1("test_share", test_share), test_people

    def load(self, seed: int) -> TensorFederation:
        """Return windows, (N, 6, length), and exercises, (N,)."""
        series = load_watch(self.root)
        windows = [_windows(each, self.length) for each in series["X"]]
        counts = [len(each) for each in windows]
        inputs = torch.from_numpy(np.concatenate(windows))
        labels = torch.from_numpy(np.repeat(series["y"], counts).astype(np.int64))
        people, person = np.unique(series["subject"], return_inverse=True)
        owners = np.repeat(2 * person + series["side"].astype(np.int64), counts)
        # The windows of a client's exercises side by side: its last windows are the last ones of each exercise.
        places = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
        rows = [part[np.argsort(places[part], kind="stable")] for part in examples_of(owners, 2 * len(people))]
        names = [f"person {number}, {side} arm" for number in people for side in ("left", "right")]
        if not self.test_people:
            return cut_in_time((inputs, labels), rows, self.test_share, names)
        kept = 2 * (len(people) - self.test_people)
        others = torch.from_numpy(np.concatenate(rows[kept:]))
        test = (inputs[others], labels[others])
        return TensorFederation((inputs, labels), test, rows[:kept], names[:kept], in_time_order=True)


def load_watch(root: str | Path) -> dict[str, Any]:
    """Return the series ``X`` and the exercise ``y``, ``subject`` and ``side`` of each."""
    (content,) = _PACKAGE.members(root, ["seglearn/data/watch_dataset.npy"])
    return dict(unpickled(content[_HEADER:], "watch_dataset.npy").item())


class _ArraysOnly(pickle.Unpickler):
    """Reads pickled arrays; whatever else a pickle wants to call is refused."""

    @override
    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        known = {
            ("numpy.core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("_codecs", "encode"): lambda text, _: text.encode("latin1"),
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it wants to run {module}.{name}")
        return known[module, name]  # type: ignore[return-value]


def unpickled(content: bytes, title: str) -> Any:
    """Return a pickled array, or refuse it."""
    try:
        return _ArraysOnly(io.BytesIO(content)).load()
    except Exception as error:  # a damaged pickle breaks in many ways
        raise ValueError(f"{title} is damaged ({error}); delete it and start again") from None


def _windows(series: np.ndarray, length: int) -> np.ndarray:
    number = len(series) // length
    scaled = (series[: number * length] - _MEAN) / _STD
    return scaled.reshape(number, length, 6).transpose(0, 2, 1).astype(np.float32)
