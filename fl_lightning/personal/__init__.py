"""What clients train for themselves beside the update that they send: one class per method."""

from fl_lightning.personal.apfl import MixedModels
from fl_lightning.personal.ditto import PulledModels
from fl_lightning.personal.fedrep import HeadFirst
from fl_lightning.personal.personal import Personal, PersonalModels

__all__ = ["HeadFirst", "MixedModels", "Personal", "PersonalModels", "PulledModels"]
