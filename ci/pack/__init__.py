"""Reads compiled files (cubin, hsaco, the simulator's shared library) and reports the resources of their kernels."""
