"""Train a federation: ``python train.py --config cifar_fedacs.yaml``."""

import sys

from fl_lightning.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
