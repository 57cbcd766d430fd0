"""Federated learning on PyTorch Lightning for clients that differ in work and in reach."""

__version__ = "0.1.0"
