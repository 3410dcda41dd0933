"""Reads what a compiler made (cubin, hsaco, the simulator's shared library) and says what its kernels take."""
