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

set(flags -arch=${target_architecture} -std=c++20 -default-device ${kernel_defines})
set(files)
foreach(source IN LISTS kernel_sources)
  cmake_path(GET source STEM stem)
  set(cubin ${PROJECT_BINARY_DIR}/code/${stem}.nvrtc.cubin)
  add_custom_command(OUTPUT ${cubin} BYPRODUCTS ${PROJECT_BINARY_DIR}/code/${stem}.nvrtc.log
    COMMAND ${Python_EXECUTABLE} -I ${nvrtc_script} --library ${nvrtc} --root ${PROJECT_SOURCE_DIR} --out ${cubin}
      ${source} -- ${flags}
    DEPENDS ${source} ${nvrtc_script} ${nvrtc} DEPFILE ${cubin}.d
    COMMENT "Compiling ${stem}.nvrtc.cubin for ${target_architecture}" VERBATIM)
  list(APPEND files ${cubin})
endforeach()
add_generation("nvrtc ${found}" "${flags}" "${files}")
