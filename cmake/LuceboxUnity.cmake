# compile_together(TARGET APART file...): wheels, and builds that ask for it, compile up to sixteen files of a folder as
# one translation unit, because half of a file's time goes into headers and templates that its neighbours need too.
# APART: files that declare a local name of a neighbour. Other builds compile each file alone: a developer's edit compiles
# one file, and a build without precompiled headers finds the includes that a file lacks.
option(LUCEBOX_TOGETHER "compile up to sixteen files of a folder as one translation unit, as wheels do" OFF)
function(compile_together target)
  cmake_parse_arguments(PARSE_ARGV 1 given "" "" APART)
  if(NOT (LUCEBOX_TOGETHER OR SKBUILD_STATE STREQUAL "wheel") OR CMAKE_DISABLE_PRECOMPILE_HEADERS)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    if(source IN_LIST given_APART)
      set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
      continue()
    endif()
    # The name of a group has no absolute path: CMake links groups in an order that depends on their names.
    cmake_path(GET source PARENT_PATH folder)
    cmake_path(ABSOLUTE_PATH folder)
    cmake_path(RELATIVE_PATH folder BASE_DIRECTORY ${CMAKE_SOURCE_DIR})
    string(MAKE_C_IDENTIFIER "in_${folder}" folder)
    math(EXPR ${folder} "0${${folder}} + 1")
    math(EXPR group "${${folder}} / 16")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder}_${group})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()
