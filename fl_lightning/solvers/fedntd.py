"""FedNTD: local steps keep what the global model says of the classes that an example does not have."""

import torch
from torch.nn import functional

from fl_lightning.solvers.solver import SGD

_NEVER = -1e30  # logit of a class that is left out


class NotTrueDistillation(SGD):
    r"""Is SGD on a loss that keeps the global model's view of the not-true classes (FedNTD, Lee et al. 2022).

    .. math:: F_m(x) + \beta \, \mathrm{KL}\left( \tilde{q}_g \,\Vert\, \tilde{q}_x \right), \qquad
        \tilde{q}(c) = \frac{e^{z_c / \tau}}{\sum_{c' \neq y} e^{z_{c'} / \tau}}, \quad c \neq y

    with logits z of the model at hand and of the global one g, averaged over a batch; the authors' code has no factor
    :math:`\tau^2` either. The global model predicts in evaluation mode, as it did when the round began.

    The term belongs to the local loss, so A is that of plain steps. It holds drift back and vanishes where a round
    begins: Omega is FedAvg's as far as updates are short. A module must call ``self(inputs)`` once in its
    ``training_step`` for logits (B, C), and take batches of inputs and labels (B,).

    Args:
        beta: Weight of the term.
        temperature: :math:`\tau`.
        momentum: As in :class:`SGD`.
        weight_decay: As in :class:`SGD`.
    """

    def __init__(
        self, beta: float = 1.0, temperature: float = 1.0, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        super().__init__(momentum, weight_decay=weight_decay)
        if not 0 <= beta < float("inf") or not 0 < temperature < float("inf"):
            raise ValueError(f"beta={beta} must be finite and >= 0, temperature={temperature} finite and > 0")
        self.beta, self.temperature = beta, temperature

    def added_loss(self, logits: torch.Tensor, taught: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the term of a batch, given the logits of both models (B, C) and the labels (B,)."""
        true = labels[:, None] == torch.arange(logits.shape[1], device=logits.device)
        own, others = (
            functional.log_softmax(each.float().masked_fill(true, _NEVER) / self.temperature, dim=1)
            for each in (logits, taught)
        )
        return self.beta * (others.exp() * (others - own)).sum(dim=1).mean()
