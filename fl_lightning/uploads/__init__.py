"""What happens to an update between a client and the aggregator: one class per method."""

from fl_lightning.uploads.base import Upload
from fl_lightning.uploads.chain import Uploads
from fl_lightning.uploads.compression import Compression, Quantized, RandomK, Signs, TopK

__all__ = ["Compression", "Quantized", "RandomK", "Signs", "TopK", "Upload", "Uploads"]
