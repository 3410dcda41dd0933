# Everything the host's compiler builds shares this: the language, the project's build options, and the flags (on one
# interface library).
enable_language(CXX)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

option(LUCEBOX_PYTHON "build the Python module (pip turns it on)" OFF)
option(LUCEBOX_SANITIZE "address and undefined-behaviour sanitizers" OFF)
option(LUCEBOX_FUZZ "build the fuzz drivers of tests/fuzz" OFF)

# No folder may show in the binary: two builds in two places are the same bytes. Directory-wide, so that it reaches
# nanobind's own sources as well.
add_compile_options(-ffile-prefix-map=${CMAKE_SOURCE_DIR}=. -ffile-prefix-map=${CMAKE_BINARY_DIR}=build)

add_library(lucebox_flags INTERFACE)
# Ops are written with the names of the members they set; the others are zero.
target_compile_options(lucebox_flags INTERFACE
  -Wall -Wextra -Wno-missing-field-initializers -Werror=return-type -fno-math-errno -ffp-contract=off)
if(LUCEBOX_SANITIZE)
  target_compile_options(lucebox_flags INTERFACE
    -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(lucebox_flags INTERFACE -fsanitize=address,undefined)
endif()
