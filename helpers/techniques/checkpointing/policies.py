"""Names of policies and the segments that they mean: `helpers.catalog.policies`, where a TrainSetup finds them too."""

from ...catalog.policies import COUNTED, PER_LAYER, POLICIES, Segment, layout

__all__ = ["COUNTED", "PER_LAYER", "POLICIES", "Segment", "layout"]
