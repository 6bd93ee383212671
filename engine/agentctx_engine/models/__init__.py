"""Decoder layers and checkpoint loading."""

from agentctx_engine.models.config import FAMILIES, Family, LayerGroup, ModelConfig, Rope
from agentctx_engine.models.errors import CheckpointError
from agentctx_engine.models.loading import load_model, open_weights
from agentctx_engine.models.model import Model
from agentctx_engine.models.random_model import random_config, random_model

__all__ = [
    "FAMILIES",
    "CheckpointError",
    "Family",
    "LayerGroup",
    "Model",
    "ModelConfig",
    "Rope",
    "load_model",
    "open_weights",
    "random_config",
    "random_model",
]
