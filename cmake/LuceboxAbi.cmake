# LUCEBOX_KERNEL_ABI: a hash of the headers that kernels and engine share. They define the parameter structs, the layout
# of shared memory and the quantised blocks. An engine rejects packs with another hash (pack/pack.cpp).
set(shared_headers cpp/base/dtype_id.h cpp/device/sim_abi.h cpp/ops/*.h cpp/quant/*.h gpu/*/shape.h)
list(TRANSFORM shared_headers PREPEND ${PROJECT_SOURCE_DIR}/src/)
file(GLOB shared_headers RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS ${shared_headers})
set(digests)
foreach(header IN LISTS shared_headers)
  file(SHA256 ${PROJECT_SOURCE_DIR}/${header} digest)
  string(APPEND digests "${header} ${digest}\n")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${header})
endforeach()
string(SHA256 LUCEBOX_KERNEL_ABI "${digests}")
string(SUBSTRING ${LUCEBOX_KERNEL_ABI} 0 16 LUCEBOX_KERNEL_ABI)
