"""What happens to an update between a client and the aggregator: one class per method."""

from fl_lightning.parts.traits import UploadTraits as UploadTraits
from fl_lightning.uploads.attacks import Attack as Attack
from fl_lightning.uploads.chain import Upload as Upload
from fl_lightning.uploads.chain import Uploads as Uploads
from fl_lightning.uploads.clipping import Clip as Clip
from fl_lightning.uploads.compression import Compression as Compression
from fl_lightning.uploads.compression import Quantized as Quantized
from fl_lightning.uploads.compression import RandomK as RandomK
from fl_lightning.uploads.compression import Signs as Signs
from fl_lightning.uploads.compression import TopK as TopK
from fl_lightning.uploads.gaussian import GaussianMechanism as GaussianMechanism
from fl_lightning.uploads.over_the_air import OverTheAir as OverTheAir
