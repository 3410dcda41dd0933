# The CPU bodies of the ops. Each isa_*.cpp compiles the same bodies for one instruction set; only these files have
# instruction set flags, so everything else runs on any machine of the architecture.
target_sources(lucebox_engine PRIVATE
  cpu/cpu_stream.cpp cpu/kernels.cpp cpu/isa_portable.cpp
  cpu/run_attention.cpp cpu/run_delta_net.cpp cpu/run_draft.cpp cpu/run_elementwise.cpp
  cpu/run_experts.cpp cpu/run_key_scores.cpp cpu/run_select_blocks.cpp cpu/run_linear.cpp cpu/run_vision.cpp
  cpu/scalar/attention.cpp cpu/scalar/block_conv.cpp cpu/scalar/delta_net.cpp cpu/scalar/key_scores.cpp
  cpu/scalar/linear.cpp cpu/scalar/norm.cpp cpu/scalar/rope.cpp cpu/scalar/swiglu.cpp cpu/scalar/top_tokens.cpp)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  target_sources(lucebox_engine PRIVATE cpu/isa_avx2.cpp cpu/isa_avx512.cpp)
  set_source_files_properties(cpu/isa_avx2.cpp cpu/isa_avx512.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  # GCC at -O3 copies the bodies for conditions and arguments that are constant in a loop: a third of the compiler's time
  # and an eighth of the code, for products that are not faster.
  set(no_copies)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set(no_copies -fno-unswitch-loops -fno-ipa-cp-clone -fno-split-loops -fno-split-paths -fno-loop-interchange
      -fno-tree-partial-pre)
  endif()
  set_source_files_properties(cpu/isa_avx2.cpp PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c;${no_copies}")
  # The last two flags: GCC mistakes the "undefined" operands of its own AVX-512 header for uninitialised variables.
  set_source_files_properties(cpu/isa_avx512.cpp PROPERTIES COMPILE_OPTIONS
    "-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512vnni;-mavx512vbmi;-mfma;-mf16c;-mprefer-vector-width=512;${no_copies};-Wno-uninitialized;-Wno-maybe-uninitialized")
endif()
