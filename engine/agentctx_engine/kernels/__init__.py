"""C loops for the CPU, compiled at first use. Without a compiler everything runs on PyTorch alone."""

from agentctx_engine.kernels.library import LANES, MOST_ROWS, Kernels, attends, load_kernels

__all__ = ["LANES", "MOST_ROWS", "Kernels", "attends", "load_kernels"]
