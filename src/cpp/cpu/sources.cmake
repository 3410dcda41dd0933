# The CPU bodies of the ops.
target_sources(lucebox_engine PRIVATE
  cpu/kernels.cpp
  cpu/run_attention.cpp cpu/run_delta_net.cpp cpu/run_elementwise.cpp cpu/run_linear.cpp
  cpu/scalar/attention.cpp cpu/scalar/delta_net.cpp cpu/scalar/linear.cpp cpu/scalar/norm.cpp cpu/scalar/rope.cpp
  cpu/scalar/swiglu.cpp)
