"""One rank alone on a GPU, which reads others' rows in pinned host memory: the numbers that it gave
among virtual ranks of the same GPU."""

from __future__ import annotations

import pytest

from tests.runtime.test_alone import WAYS, with_what_others_gave

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("way", WAYS)
def test_with_what_others_gave(way):
    with_what_others_gave(way, "cuda")
