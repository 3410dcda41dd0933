# The simulator: the kernels and the simulator that runs them, as one host library.
include(LuceboxOptions)
include(CheckCXXSourceRuns)

file(GLOB runtime CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/sim/*.cpp)
list(APPEND kernel_sources ${runtime})
# Tests spend most of their time in the simulator, also under sanitizers, so it is always optimised. Kernels are not
# faster at -O3 than at -O1, which compiles them in two thirds of the time.
set_source_files_properties(${runtime} PROPERTIES COMPILE_OPTIONS -O2 SKIP_PRECOMPILE_HEADERS ON)
list(REMOVE_DUPLICATES kernel_sources)
add_library(kernels MODULE ${kernel_sources})
target_include_directories(kernels PRIVATE
  ${PROJECT_SOURCE_DIR}/src/sim ${PROJECT_SOURCE_DIR}/src/cpp ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(kernels PRIVATE lucebox_flags)
target_compile_options(kernels PRIVATE -O1)
# The standard headers that src/sim includes; precompiled, they save a second per kernel file.
target_precompile_headers(kernels PRIVATE <cmath> <functional> <memory> <source_location> <type_traits> <vector>)
# The megakernels define the number of helper threads, for every kernel that follows.
set(gpu ${PROJECT_SOURCE_DIR}/src/gpu)
include(LuceboxUnity)
compile_together(kernels APART
  ${gpu}/attention/key_scores.cpp ${gpu}/attention/select_blocks.cpp
  ${gpu}/delta_net/delta_inputs_small.cpp ${gpu}/delta_net/gated_delta_chunks.cpp
  ${gpu}/experts/expert_gate_up_quantised.cpp
  ${gpu}/gemm/gemm_wide_plain.cpp
  ${gpu}/megakernel/megakernel_32.cpp ${gpu}/megakernel/megakernel_32_direct.cpp
  ${gpu}/megakernel/megakernel_256.cpp ${gpu}/megakernel/megakernel_256_direct.cpp
  ${gpu}/megakernel/megakernel_plain.cpp ${gpu}/megakernel/megakernel_plain_direct.cpp
  ${gpu}/sampling/top_tokens.cpp)
set_target_properties(kernels PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/code)

# list_kernels reads the library's list of kernels. It is a program, not Python, because a library with sanitizers loads
# only into a process that has them.
add_executable(list_kernels ${PROJECT_SOURCE_DIR}/ci/pack/list_kernels.cpp)
target_include_directories(list_kernels PRIVATE ${PROJECT_SOURCE_DIR}/src/cpp)
target_link_libraries(list_kernels PRIVATE lucebox_flags ${CMAKE_DL_LIBS})
add_dependencies(kernels list_kernels)
add_custom_command(TARGET kernels POST_BUILD
  COMMAND list_kernels $<TARGET_FILE:kernels> ${PROJECT_BINARY_DIR}/code/kernels.json
  BYPRODUCTS ${PROJECT_BINARY_DIR}/code/kernels.json VERBATIM)

string(TOUPPER ${CMAKE_BUILD_TYPE} build)
separate_arguments(flags UNIX_COMMAND "${CMAKE_CXX_FLAGS_${build}}")
list(APPEND flags -O1 -std=c++20 ${kernel_defines})
target_compile_options(kernels PRIVATE ${kernel_defines})
# fma as an instruction: with calls of the C library's fma, tests with many products take most of their time there.
# Not for wheels, which must run on any machine.
if(NOT DEFINED SKBUILD)
  check_cxx_source_runs("int main() { return __builtin_cpu_supports(\"fma\") ? 0 : 1; }" LUCEBOX_HAS_FMA)
  if(LUCEBOX_HAS_FMA)
    target_compile_options(kernels PRIVATE -mfma)
    list(APPEND flags -mfma)
  endif()
endif()
add_generation("${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}" "${flags}" $<TARGET_FILE:kernels>)
