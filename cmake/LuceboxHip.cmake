# AMD: one code object per kernel file. Any recent clang can compile them: the kernels include only the project's own
# headers and link no ROCm library.
if(LUCEBOX_TOOLCHAIN STREQUAL "pypi")
  execute_process(COMMAND ${Python_EXECUTABLE} -c "import ziglang; print(*ziglang.__path__)"
    OUTPUT_VARIABLE zig_folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  find_program(zig zig PATHS ${zig_folder} NO_DEFAULT_PATH NO_CACHE)
  if(NOT zig)
    message(FATAL_ERROR "${Python_EXECUTABLE} has no ziglang, whose clang compiles AMD kernels. Install it there:\n"
      "  ${install_wheels}")
  endif()
  # This clang runs a linker named ld.lld, which zig has as a command.
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/bin/ld.lld @ONLY CONTENT "#!/bin/sh\nexec '@zig@' ld.lld \"$@\"\n")
  file(CHMOD ${PROJECT_BINARY_DIR}/bin/ld.lld PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  set(clang ${CMAKE_COMMAND} -E env --modify PATH=path_list_prepend:${PROJECT_BINARY_DIR}/bin ${zig} clang)
  set(name "zig clang")
else()
  find_program(clang NAMES amdclang++ clang++ HINTS ENV ROCM_PATH PATH_SUFFIXES bin llvm/bin lib/llvm/bin NO_CACHE)
  if(NOT clang)
    message(FATAL_ERROR "LUCEBOX_TOOLCHAIN=system: neither amdclang++ nor clang++ on PATH or under ROCM_PATH")
  endif()
  cmake_path(GET clang FILENAME name)
endif()
execute_process(COMMAND ${clang} --version OUTPUT_VARIABLE about COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCH "clang version ([0-9.]+)" found "${about}")
set(version ${CMAKE_MATCH_1})
string(REGEX REPLACE "InstalledDir:[^\n]*" "" about "${about}")  # one build in two folders is one compiler
string(SHA256 compiler "${about}")

# No bundle, because unbundling needs another program. Code object version 5 loads on ROCm 5.7 and later. No cuid, which
# is a hash of paths. No tail calls: with them the compiler does not know the callers' register use, and a function
# saves up to 176 bytes of registers on a stack.
set(flags -x hip --cuda-device-only --no-gpu-bundle-output --offload-arch=${target_architecture}
  -mcode-object-version=5 -fuse-cuid=none -nogpuinc -nogpulib -nostdinc -O3 -std=c++20
  -fno-optimize-sibling-calls ${kernel_defines})
set(files)
foreach(source IN LISTS kernel_sources)
  cmake_path(GET source STEM stem)
  set(hsaco ${PROJECT_BINARY_DIR}/code/${stem}.hsaco)
  add_custom_command(OUTPUT ${hsaco}
    COMMAND ${compile_object} clang --out ${hsaco} --compiler ${compiler} "--tool=${clang}" ${source} -- ${flags}
    DEPENDS ${source} ${compile_object_files} DEPFILE ${hsaco}.d
    COMMENT "Compiling ${stem}.hsaco for ${target_architecture}" VERBATIM)
  list(APPEND files ${hsaco})
endforeach()
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/code)
add_generation("${name} ${version}" "${flags}" "${files}")
