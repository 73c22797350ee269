"""The CPU runs the reference until its Numba kernels land."""

from tiergnn.kernels.dropout.reference import *  # noqa: F403
