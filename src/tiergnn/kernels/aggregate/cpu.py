"""The CPU runs the reference until its Numba kernels land."""

from tiergnn.kernels.aggregate.reference import *  # noqa: F403
