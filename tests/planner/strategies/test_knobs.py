"""Knobs as people read them."""

from __future__ import annotations

from tiergnn.planner.strategies.knobs import Knobs


def test_what_was_chosen_is_shown_and_shares_in_three_digits():
    assert str(Knobs()) == "defaults"
    shown = str(Knobs(ranks=8, device_cache_frac=0.08825893556089649, recompute=(1, 2)))
    for word in ("ranks=8", "device_cache_frac=0.0883", "recompute=(1, 2)"):
        assert f" {word} " in f" {shown} "
