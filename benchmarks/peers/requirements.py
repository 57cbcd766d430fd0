"""The versions that are measured, each in a virtualenv of its own."""

TORCH = "torch==2.13.0"

PEERS = {
    "flower": (TORCH, "numpy<3", "flwr[simulation]==1.41.0"),
    "pfl": (TORCH, "numpy<3", "pfl[pytorch]==0.6.0"),
    "fedlab": (TORCH, "numpy<3", "fedlab==1.3.0"),
    "flgo": (TORCH, "numpy<3", "flgo==0.4.4"),
}
