"""Examples as text, for a terminal: text as text, pictures and series drawn with characters, numbers as numbers."""

from collections.abc import Sequence

import numpy as np
import torch

_SHADES = " .:-=+*#%@"
_LEVELS = "▁▂▃▄▅▆▇█"
_MOST_NUMBERS = 12
_MOST_COLUMNS = 64


def example_lines(inputs: torch.Tensor, class_names: Sequence[str]) -> list[str]:
    """Return the input of one example as lines.

    >>> example_lines(torch.tensor([1, 0, 1]), "ab")
    ['bab']
    >>> example_lines(torch.tensor([0.5, 2.0]), "")
    ['0.5 2']
    >>> example_lines(torch.tensor([[0.0, 3.0, 7.0]]), "")
    ['▁▄█']
    >>> example_lines(torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]), "")
    [' @']
    """
    values = inputs.detach().cpu().numpy()
    if not inputs.is_floating_point() and values.ndim == 1 and class_names and values.max() < len(class_names):
        return "".join(class_names[code] for code in values).splitlines()
    if values.ndim == 3:  # channels, height, width; a character is about twice as high as wide
        return [_characters(row, _SHADES) for row in _scaled(values.mean(axis=0)[::2])]
    if values.ndim == 2:  # channels, time
        return [_characters(_scaled(row), _LEVELS) for row in values]
    numbers = [f"{value:.3g}" for value in values.reshape(-1)[:_MOST_NUMBERS].tolist()]
    return [" ".join(numbers) + (f" ... ({values.size} numbers)" if values.size > _MOST_NUMBERS else "")]


def _scaled(values: np.ndarray) -> np.ndarray:
    low, high = float(values.min()), float(values.max())
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


def _characters(values: np.ndarray, scale: str) -> str:
    step = -(-len(values) // _MOST_COLUMNS)
    return "".join(scale[min(int(value * len(scale)), len(scale) - 1)] for value in values[::step])
