"""The same configuration on real machines: clients behind Flower's SuperNodes in place of simulated ones.

Needs ``pip install -e '.[flower]'``; nothing else of the package imports it.
"""
