import io

import numpy as np
import pytest

from fl_lightning.figures.clients import partition_figure

NAMES = tuple("abcdefghij")


def counts(num_clients):
    return np.random.default_rng(0).multinomial(50, np.full(10, 0.1), size=num_clients)


@pytest.mark.parametrize("num_clients", [1, 20, 50, 51, 1000])
def test_figure_renders_and_shows_all_clients(num_clients):
    figure = partition_figure(counts(num_clients), NAMES)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    assert file.getvalue().startswith(b"\x89PNG")
    top, main = figure.axes[:2]
    assert top.get_title(loc="left").startswith(f"{num_clients:,} client")
    assert [label.get_text() for label in main.get_yticklabels()] == list(NAMES)
    low, high = main.get_xlim()
    assert low < 0 <= num_clients - 1 < high


def test_bubble_areas_are_proportional_to_the_counts():
    values = np.zeros((3, 2), dtype=np.int64)
    values[0, 0], values[1, 1], values[2, 0] = 100, 50, 25
    (bubbles,) = partition_figure(values, ("x", "y")).axes[1].collections
    assert bubbles.get_offsets().tolist() == [[0, 0], [1, 1], [2, 0]]
    areas = bubbles.get_sizes()
    np.testing.assert_allclose(areas / areas[0], [1, 0.5, 0.25])


@pytest.mark.parametrize("shape", [(3,), (3, 9), (0, 10)])
def test_shape_is_checked(shape):
    with pytest.raises(ValueError, match="10 classes"):
        partition_figure(np.zeros(shape, dtype=np.int64), NAMES)
