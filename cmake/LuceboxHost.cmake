# The host engine, the Python module and the fuzz drivers.
include(LuceboxOptions)
set(LUCEBOX_ENGINE "" CACHE FILEPATH "liblucebox_engine.a of another build of these sources, in place of compiling it")

add_subdirectory(src/cpp)
if(LUCEBOX_PYTHON)
  add_subdirectory(src/cpp/bindings)
endif()
if(LUCEBOX_FUZZ)
  add_subdirectory(tests/fuzz)
endif()
