# Compiles for older NVIDIA drivers with NVRTC. It is a library, so the build needs neither nvcc nor a C++ compiler.
string(JSON nvrtc_version GET "${target}" nvrtc version)
set(nvrtc_script ${PROJECT_SOURCE_DIR}/python/lucebox/packs/nvrtc.py)
set(library)
if(LUCEBOX_NVRTC)
  set(library --library ${LUCEBOX_NVRTC})
endif()
execute_process(COMMAND ${Python_EXECUTABLE} ${nvrtc_script} ${library}
  OUTPUT_VARIABLE found ERROR_VARIABLE problem RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE)
if(failed)
  message(FATAL_ERROR "${problem}\n${install_wheels}")
endif()
list(GET found 0 nvrtc)
list(GET found 1 found)
string(FIND "${found}" "${nvrtc_version}." at)
if(NOT at EQUAL 0)
  message(FATAL_ERROR "${nvrtc} is NVRTC ${found}, expected ${nvrtc_version} (targets/${target_family}/target.toml). "
    "${install_wheels}")
endif()

set(ptxas_version)
if(LUCEBOX_PTXAS)
  execute_process(COMMAND ${LUCEBOX_PTXAS} --version OUTPUT_VARIABLE about COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCH "V([0-9.]+)" ptxas_version "${about}")
  set(ptxas_version ${CMAKE_MATCH_1})
  string(FIND "${ptxas_version}" "${nvrtc_version}." at)
  if(NOT at EQUAL 0)
    message(FATAL_ERROR "LUCEBOX_PTXAS=${LUCEBOX_PTXAS} is version ${ptxas_version}, expected NVRTC's ${nvrtc_version}")
  endif()
endif()

if(LUCEBOX_RUNS_ON AND NOT LUCEBOX_PTXAS)
  message(FATAL_ERROR "LUCEBOX_RUNS_ON=${LUCEBOX_RUNS_ON}: NVRTC compiles for ${target_architecture} alone. Set "
    "LUCEBOX_PTXAS to the ptxas of CUDA ${nvrtc_version}, which assembles the PTX for another chip")
endif()

set(flags -std=c++20 -default-device ${kernel_defines})
set(files)
foreach(source IN LISTS kernel_sources)
  cmake_path(GET source STEM stem)
  set(cubin ${PROJECT_BINARY_DIR}/code/${stem}.nvrtc.cubin)
  add_custom_command(OUTPUT ${cubin} BYPRODUCTS ${PROJECT_BINARY_DIR}/code/${stem}.nvrtc.log
    COMMAND ${compile_object} nvrtc --out ${cubin} --compiler "${found} ${ptxas_version}" --tool ${nvrtc}
      --ptxas=${LUCEBOX_PTXAS} --runs-on=${LUCEBOX_RUNS_ON} ${source} -- ${flags}
    DEPENDS ${source} ${compile_object_files} ${nvrtc} DEPFILE ${cubin}.d
    COMMENT "Compiling ${stem}.nvrtc.cubin for ${target_architecture}" VERBATIM)
  list(APPEND files ${cubin})
endforeach()
add_generation("nvrtc ${found}" "-arch=${target_architecture};${flags}" "${files}")
