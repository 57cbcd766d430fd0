"""The federated loop: rounds on Lightning Fabric, who watches them, what a run returns and resumes from."""

from fl_lightning.loop.loop import FederatedLoop

__all__ = ["FederatedLoop"]
