"""NVFlare: an audit and a cure for federations that run its FedAvg recipes.

Needs ``pip install -e '.[nvflare]'``; nothing else of the package imports it.
"""

try:
    from fl_lightning.nvflare.recording import ParticipationRecorder, audited
    from fl_lightning.nvflare.weighing import HeterogeneityAware
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] != "nvflare":
        raise
    raise ModuleNotFoundError("NVFlare is not installed: pip install -e '.[nvflare]'", name="nvflare") from None

__all__ = ["HeterogeneityAware", "ParticipationRecorder", "audited"]
