"""Paged attention and what stands around it, in Triton: one kernel per module, each with the function that launches it.

Importing this package imports triton, so nothing here is imported before the Triton backend is chosen. With
``TRITON_INTERPRET=1`` in the environment at that time the kernels run on the CPU.
"""
