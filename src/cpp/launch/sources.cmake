# Shape and target to kernel and geometry: pure functions, no driver. And the stream that carries them out.
target_sources(lucebox_engine PRIVATE
  ../gpu/attention/choose.cpp
  ../gpu/delta_net/choose.cpp
  ../gpu/elementwise/choose.cpp
  dispatch/gpu_stream.cpp
  dispatch/kernel_timer.cpp
  pack/launch.cpp
  ../gpu/gemv/choose.cpp
  ../gpu/gemm/choose.cpp
  ../gpu/gemm_skinny/choose.cpp
  ../gpu/gemm/choose_sm90.cpp
  pack/pack.cpp
  ../gpu/sampling/choose.cpp
  ../gpu/megakernel/schedule/schedule.cpp
  pack/target.cpp
  ../gpu/megakernel/schedule/weight_chunks.cpp)
set_source_files_properties(pack/pack.cpp PROPERTIES COMPILE_DEFINITIONS LUCEBOX_KERNEL_ABI="${LUCEBOX_KERNEL_ABI}")
