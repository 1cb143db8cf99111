"""Fixtures that several folders use, made once for all of them."""

from rig_fixtures import frame_rig, made_rigs, rig

__all__ = ["frame_rig", "made_rigs", "rig"]
