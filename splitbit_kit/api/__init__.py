"""All that a plugin may import. It needs numpy, pluggy and the standard library, no more."""

import pluggy

from splitbit_kit.api.backend import (
    PRECISIONS,
    Array,
    Backend,
    BackendOffer,
    CacheMaker,
    Context,
    Gradients,
    KVCache,
    LowRank,
    Op,
    OpOffer,
    Param,
    Peak,
    Site,
    Workspace,
    accepts_plain,
)
from splitbit_kit.api.errors import SplitbitError, UsageError
from splitbit_kit.api.events import (
    CheckpointSaved,
    EvalDone,
    Event,
    RunEnded,
    RunStarted,
    SampleWritten,
    StepDone,
    Tracker,
    TrackerOffer,
)
from splitbit_kit.api.hardware import TIERS, Hardware, tier_floor, tier_of
from splitbit_kit.api.learning import (
    FlatOps,
    Optimizer,
    OptimizerOffer,
    Parameters,
    Schedule,
    SchedulerOffer,
    State,
)
from splitbit_kit.api.ops import OPS, Ops, OpSpec
from splitbit_kit.api.quantization import Layout, PackedTensor, Quantizer, QuantizerOffer

API_VERSION = 0
"""Rises when a plugin must change. It freezes at 1 once the quantisation work has used the API."""

hookimpl = pluggy.HookimplMarker("splitbit_kit")
"""Marks a function of a plugin as the implementation of the hook of that name."""

__all__ = [
    "API_VERSION",
    "OPS",
    "PRECISIONS",
    "TIERS",
    "Array",
    "Backend",
    "BackendOffer",
    "CacheMaker",
    "CheckpointSaved",
    "Context",
    "EvalDone",
    "Event",
    "FlatOps",
    "Gradients",
    "Hardware",
    "KVCache",
    "Layout",
    "LowRank",
    "Op",
    "OpOffer",
    "OpSpec",
    "Ops",
    "Optimizer",
    "OptimizerOffer",
    "PackedTensor",
    "Param",
    "Parameters",
    "Peak",
    "Quantizer",
    "QuantizerOffer",
    "RunEnded",
    "RunStarted",
    "SampleWritten",
    "Schedule",
    "SchedulerOffer",
    "Site",
    "SplitbitError",
    "State",
    "StepDone",
    "Tracker",
    "TrackerOffer",
    "UsageError",
    "Workspace",
    "accepts_plain",
    "hookimpl",
    "tier_floor",
    "tier_of",
]
