# Builds the kernel pack of LUCEBOX_TARGET. targets/<name>/target.toml lists its contents, the vendor's module compiles
# them, and ci/make_pack.py checks the result and writes the import package with its manifest.
set(LUCEBOX_TOOLCHAIN pypi CACHE STRING "pypi: compilers of the Python environment; system: those of this machine")
set_property(CACHE LUCEBOX_TOOLCHAIN PROPERTY STRINGS pypi system)
if(NOT LUCEBOX_TOOLCHAIN MATCHES "^(pypi|system)$")
  message(FATAL_ERROR "LUCEBOX_TOOLCHAIN: expected pypi or system, got '${LUCEBOX_TOOLCHAIN}'")
endif()
option(LUCEBOX_TIMELINE "the megakernel stamps its steps, for lucebox bench --timeline; off in releases, on in sim" OFF)
# A variant is a changed target under a separate name.
set(LUCEBOX_VARIANT "" CACHE STRING "a word: the pack is a variant of the target, sm_86_<word>")
set(LUCEBOX_TUNING "" CACHE STRING "tuning constants of the variant: key=value;...")
set(LUCEBOX_DEFINES "" CACHE STRING "compiled-in constants of the variant: key=value;...")
set(LUCEBOX_WITHOUT "" CACHE STRING "kernel files that the variant leaves out, without folder and suffix: stem;...")
set(LUCEBOX_RUNS_ON "" CACHE STRING "a later NVIDIA architecture to compile the target's code for, to try it there")
set(LUCEBOX_COMMIT "" CACHE STRING "the commit of these sources, for the manifest; ci/build_packs.py names it")
set(objects $ENV{XDG_CACHE_HOME})
if(NOT objects)
  set(objects $ENV{HOME}/.cache)
endif()
if(SKBUILD)  # pip builds a pack once
  set(objects)
else()
  string(APPEND objects /lucebox/objects)
endif()
set(LUCEBOX_OBJECTS "${objects}" CACHE STRING "folder that keeps compiled kernels for all later builds; empty: none")
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)

set(kernel_defines)
if(LUCEBOX_TIMELINE OR LUCEBOX_TARGET STREQUAL sim)
  set(kernel_defines -DLUCEBOX_TIMELINE)
endif()
set(pack_script ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/ci/make_pack.py)
file(GLOB pack_script_files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/ci/pack/*.py)
foreach(script make_pack sbom targets)
  list(APPEND pack_script_files ${PROJECT_SOURCE_DIR}/ci/${script}.py)
endforeach()
set(wheel_script ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/ci/make_wheel.py)

set(target_file ${PROJECT_SOURCE_DIR}/targets/${LUCEBOX_TARGET}/target.toml)
file(GLOB kernel_files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/gpu/*/*.cpp)  # a new file reruns CMake
list(JOIN LUCEBOX_TUNING "," tuning)
list(JOIN LUCEBOX_DEFINES "," defines)
list(JOIN LUCEBOX_WITHOUT "," without)
set(target_options ${LUCEBOX_TARGET} "--variant=${LUCEBOX_VARIANT}" "--tuning=${tuning}" "--defines=${defines}"
  "--without=${without}")
if(SKBUILD AND LUCEBOX_VARIANT)
  message(FATAL_ERROR "LUCEBOX_VARIANT=${LUCEBOX_VARIANT}: pip names the wheel after its project. Use a preset, or add "
    "the folder targets/${LUCEBOX_TARGET}_${LUCEBOX_VARIANT} (docs/building-packs.md)")
endif()
execute_process(COMMAND ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/ci/targets.py ${target_options}
  OUTPUT_VARIABLE target ERROR_VARIABLE problem RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "${problem}")
endif()
foreach(key name family vendor architecture slug project)
  string(JSON target_${key} GET "${target}" ${key})
endforeach()
set(compile_object ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/ci/compile_object.py --arch ${target_architecture}
  --store=${LUCEBOX_OBJECTS})
set(compile_object_files ${PROJECT_SOURCE_DIR}/ci/compile_object.py ${PROJECT_SOURCE_DIR}/ci/pack/rdna.py
  ${PROJECT_SOURCE_DIR}/ci/pack/store.py ${PROJECT_SOURCE_DIR}/python/lucebox/packs/nvrtc.py)
string(JSON defines GET "${target}" defines)
string(JSON n_defines LENGTH "${defines}")
foreach(i RANGE ${n_defines})
  if(i LESS n_defines)
    string(JSON define MEMBER "${defines}" ${i})
    string(JSON value GET "${defines}" ${define})
    list(APPEND kernel_defines -D${define}=${value})
  endif()
endforeach()
list(APPEND target_file ${PROJECT_SOURCE_DIR}/targets/${target_family}/target.toml)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${target_file} ${PROJECT_SOURCE_DIR}/ci/targets.py)
string(JSON sources GET "${target}" sources)
string(JSON n_sources LENGTH "${sources}")
if(n_sources EQUAL 0)
  message(FATAL_ERROR "${LUCEBOX_TARGET}: src/gpu has no kernel files")
endif()
set(kernel_sources)
math(EXPR last "${n_sources} - 1")
foreach(i RANGE ${last})
  string(JSON source GET "${sources}" ${i})
  list(APPEND kernel_sources ${PROJECT_SOURCE_DIR}/${source})
endforeach()

if(LUCEBOX_RUNS_ON AND NOT target_vendor STREQUAL "nvidia")
  message(FATAL_ERROR "LUCEBOX_RUNS_ON=${LUCEBOX_RUNS_ON}: expected nothing, as ${LUCEBOX_TARGET} is not NVIDIA's")
endif()

# The compilers' wheels, from the pack's pyproject.toml, for error messages when one is missing.
file(STRINGS ${PROJECT_SOURCE_DIR}/targets/${target_family}/pyproject.toml wheels REGEX "^  \"(nvidia-|ziglang)")
list(TRANSFORM wheels REPLACE "^ *\"(.*)\",?$" "'\\1'")
list(JOIN wheels " " wheels)
set(install_wheels "pip install ${wheels}\nor use the machine's own: -DLUCEBOX_TOOLCHAIN=system")

# Adds a generation: all kernels by one compiler. `compiler` is its name and version; `flags` contain no paths.
set(generations)
set(code_files)
function(add_generation compiler flags files)
  list(JOIN flags " " flags)
  list(APPEND code_files ${files})
  list(APPEND generations --generation ${compiler} ${files} "--flags=${flags}")
  set(code_files ${code_files} PARENT_SCOPE)
  set(generations ${generations} PARENT_SCOPE)
  message(STATUS "${target_name}: ${n_sources} files for ${target_architecture} with ${compiler}")
endfunction()

# Each module compiles kernel_sources with kernel_defines and calls add_generation.
if(target_vendor STREQUAL "nvidia")
  include(LuceboxCuda)
elseif(target_vendor STREQUAL "amd")
  include(LuceboxHip)
else()
  include(LuceboxSim)
endif()

set(pack_folder ${PROJECT_BINARY_DIR}/pack)  # with this folder on Python's path, the pack can be imported
set(manifest ${pack_folder}/lucebox_${target_slug}/manifest.json)
set(sbom ${PROJECT_BINARY_DIR}/sboms/${target_project}.cdx.json)
add_custom_command(OUTPUT ${manifest} ${sbom}
  COMMAND ${pack_script} ${target_options} --out ${pack_folder}/lucebox_${target_slug} --sbom ${sbom}
    --abi ${LUCEBOX_KERNEL_ABI} --commit=${LUCEBOX_COMMIT} --runs-on=${LUCEBOX_RUNS_ON}
    ${generations}
  DEPENDS ${code_files} ${pack_script_files} ${target_file} ${PROJECT_SOURCE_DIR}/pyproject.toml
  COMMENT "Checking kernels, writing ${manifest}" VERBATIM)
add_custom_target(lucebox_pack ALL DEPENDS ${manifest})

# Makes the wheel in builds with a preset. pip makes wheels itself; code for another architecture must not be installed.
if(NOT SKBUILD AND NOT LUCEBOX_RUNS_ON AND NOT LUCEBOX_SANITIZE)
  add_custom_target(lucebox_wheel ALL
    COMMAND ${wheel_script} ${target_options} ${pack_folder}/lucebox_${target_slug} --sbom ${sbom}
      --out ${PROJECT_BINARY_DIR}/wheel
    DEPENDS ${manifest} COMMENT "Writing the wheel" USES_TERMINAL VERBATIM)
  add_dependencies(lucebox_wheel lucebox_pack)
endif()

install(DIRECTORY ${pack_folder}/lucebox_${target_slug} DESTINATION . COMPONENT pack)
if(SKBUILD_METADATA_DIR)  # a wheel, not a folder for a developer
  install(FILES ${sbom} DESTINATION ${SKBUILD_METADATA_DIR}/sboms COMPONENT pack)
endif()
