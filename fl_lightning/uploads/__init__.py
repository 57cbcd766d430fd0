"""What happens to an update between a client and the aggregator: one class per method."""

from fl_lightning.parts.traits import UploadTraits
from fl_lightning.uploads.attacks import Attack
from fl_lightning.uploads.chain import Upload, Uploads
from fl_lightning.uploads.clipping import Clip
from fl_lightning.uploads.compression import Compression, Quantized, RandomK, Signs, TopK
from fl_lightning.uploads.gaussian import GaussianMechanism
from fl_lightning.uploads.over_the_air import OverTheAir

__all__ = [
    "Attack",
    "Clip",
    "Compression",
    "GaussianMechanism",
    "OverTheAir",
    "Quantized",
    "RandomK",
    "Signs",
    "TopK",
    "Upload",
    "UploadTraits",
    "Uploads",
]
