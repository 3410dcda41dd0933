# Compiles for new NVIDIA drivers by direct calls of nvcc, which preprocesses with the machine's C++ compiler.
if(LUCEBOX_TOOLCHAIN STREQUAL "pypi")
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import nvidia; print(*nvidia.__path__, sep=';')"
    OUTPUT_VARIABLE folders OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  list(TRANSFORM folders APPEND /cu13/bin)
  find_program(nvcc nvcc PATHS ${folders} NO_DEFAULT_PATH NO_CACHE)
  set(advice "${Python_EXECUTABLE} has no nvcc. Install it there:\n  ${install_wheels}")
else()
  set(name nvcc)
  if(DEFINED ENV{CUDACXX})
    set(name $ENV{CUDACXX})
  endif()
  find_program(nvcc ${name} NO_CACHE)
  set(advice "LUCEBOX_TOOLCHAIN=system: no ${name}. Add the toolkit's bin folder to PATH, or set CUDACXX to its nvcc")
endif()
find_program(host_compiler NAMES $ENV{CXX} g++ c++ NO_CMAKE_SYSTEM_PATH NO_CACHE)
if(nvcc AND NOT host_compiler)
  set(nvcc)
  set(advice "nvcc needs a host compiler and there is no g++ on PATH. On Debian or Ubuntu: apt install g++")
endif()
if(NOT nvcc)
  if(LUCEBOX_NVCC STREQUAL "ON" OR NOT generations)
    message(FATAL_ERROR ${advice})
  endif()
  message(STATUS "no code by nvcc: ${advice}")
  return()
endif()

execute_process(COMMAND ${nvcc} --version OUTPUT_VARIABLE about COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCH "V([0-9.]+)" found "${about}")
set(found ${CMAKE_MATCH_1})
if(found VERSION_LESS 13.0)
  message(FATAL_ERROR "${nvcc} is version ${found}, expected 13.0 or newer (C++20, every architecture)")
endif()

set(architecture_flags -arch=${target_architecture})
if(LUCEBOX_RUNS_ON)  # compiles the target's PTX and assembles it for another architecture
  string(REPLACE sm_ compute_ virtual ${target_architecture})
  set(architecture_flags -gencode arch=${virtual},code=${LUCEBOX_RUNS_ON})
endif()
set(flags -x cu -std=c++20 -O3 -cubin ${architecture_flags} ${kernel_defines})
set(files)
foreach(source IN LISTS kernel_sources)
  cmake_path(GET source STEM stem)
  set(cubin ${PROJECT_BINARY_DIR}/code/${stem}.cubin)
  add_custom_command(OUTPUT ${cubin} BYPRODUCTS ${PROJECT_BINARY_DIR}/code/${stem}.log
    COMMAND ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/ci/run_logged.py ${PROJECT_BINARY_DIR}/code/${stem}.log
      ${nvcc} -ccbin ${host_compiler} ${flags} -Xptxas -v
      -I ${PROJECT_SOURCE_DIR}/src/cuda -I ${PROJECT_SOURCE_DIR}/src/cpp -I ${PROJECT_SOURCE_DIR}/src -MD -MF ${cubin}.d -MT ${cubin}
      -o ${cubin} ${source}
    DEPENDS ${source} ${PROJECT_SOURCE_DIR}/ci/run_logged.py DEPFILE ${cubin}.d
    COMMENT "Compiling ${stem}.cubin for ${target_architecture}" VERBATIM)
  list(APPEND files ${cubin})
endforeach()
add_generation("nvcc ${found}" "${flags}" "${files}")
