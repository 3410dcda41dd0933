# Flags every C++ target of the project shares, on one interface library.
option(LUCEBOX_SANITIZE "address and undefined-behaviour sanitizers" OFF)
option(LUCEBOX_FUZZ "build the fuzz drivers of tests/fuzz" OFF)

add_library(lucebox_flags INTERFACE)
target_compile_options(lucebox_flags INTERFACE -Wall -Wextra -Werror=return-type -fno-math-errno -ffp-contract=off
  # the build folder must not show in the binary: two builds in two places are the same bytes
  -ffile-prefix-map=${CMAKE_SOURCE_DIR}=. -ffile-prefix-map=${CMAKE_BINARY_DIR}=build)
if(LUCEBOX_SANITIZE)
  target_compile_options(lucebox_flags INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  target_link_options(lucebox_flags INTERFACE -fsanitize=address,undefined)
endif()
