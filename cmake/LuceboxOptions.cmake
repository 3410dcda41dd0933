# Shared by all targets of the host compiler: the language, the build options, and the flags (on one interface library).
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

# Binaries contain no folder names, so builds in different folders are byte-identical. The option is directory-wide, so
# that it also applies to nanobind's sources.
add_compile_options(-ffile-prefix-map=${CMAKE_SOURCE_DIR}=. -ffile-prefix-map=${CMAKE_BINARY_DIR}=build)

add_library(lucebox_flags INTERFACE)
# Op structs use designated initialisers and leave the other members zero.
target_compile_options(lucebox_flags INTERFACE
  -Wall -Wextra -Wno-missing-field-initializers -Werror=return-type -fno-math-errno -ffp-contract=off)
if(LUCEBOX_SANITIZE)
  target_compile_options(lucebox_flags INTERFACE
    -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(lucebox_flags INTERFACE -fsanitize=address,undefined)
endif()
