# NVIDIA: one cubin per kernel file and generation. NVRTC of CUDA 12 compiles for all CUDA 12 drivers and newer, nvcc of
# CUDA 13 for CUDA 13 drivers; the host loads the newest that the driver accepts (src/cpp/pack/pack.cpp). CMake's CUDA
# language is not used: it links a test program, which the PyPI toolkit cannot do, and accepts only files named .cu.
set(LUCEBOX_NVCC AUTO CACHE STRING "code by nvcc, ON: always, OFF: only without NVRTC, AUTO: where nvcc and g++ are")
set_property(CACHE LUCEBOX_NVCC PROPERTY STRINGS AUTO ON OFF)
if(NOT LUCEBOX_NVCC MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "LUCEBOX_NVCC: expected AUTO, ON or OFF, got '${LUCEBOX_NVCC}'")
endif()
set(LUCEBOX_NVRTC "" CACHE FILEPATH "libnvrtc.so.12 to use, empty: that of the Python environment")
set(LUCEBOX_PTXAS "" CACHE FILEPATH "ptxas of NVRTC's release, for PTX that chips share; empty: NVRTC makes code itself")
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/code)

string(JSON nvrtc_kind TYPE "${target}" nvrtc)
string(JSON has_nvcc GET "${target}" has_nvcc)
if(NOT has_nvcc)  # CUDA 13 does not know the chip
  include(LuceboxNvrtc)
elseif(nvrtc_kind STREQUAL "OBJECT" AND NOT LUCEBOX_RUNS_ON AND (LUCEBOX_NVRTC OR LUCEBOX_TOOLCHAIN STREQUAL "pypi"))
  include(LuceboxNvrtc)
endif()
if(has_nvcc AND (NOT LUCEBOX_NVCC STREQUAL "OFF" OR NOT generations))
  include(LuceboxNvcc)
endif()
