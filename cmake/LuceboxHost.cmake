# The host engine, its Python module and its fuzz drivers.
include(LuceboxOptions)

add_subdirectory(src/cpp)
if(LUCEBOX_PYTHON)
  add_subdirectory(src/cpp/bindings)
endif()
if(LUCEBOX_FUZZ)
  add_subdirectory(tests/fuzz)
endif()
