"""What is checked and measured on a GPU: ``python engine/benchmarks/gpu.py``. Part of the repository, not of the wheel.

The kernels' float64 references stand here once, for that script and for the tests.
"""
