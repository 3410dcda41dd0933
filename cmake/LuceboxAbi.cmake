# LUCEBOX_KERNEL_ABI: a hash of what both the kernels and the engine that launches them are compiled with, the records
# of parameters, shared memory and quantised blocks. An engine takes no pack of another one (pack/pack.cpp).
set(headers_of_both cpp/base/dtype_id.h cpp/device/sim_abi.h cpp/ops/*.h cpp/quant/*.h gpu/*/shape.h)
list(TRANSFORM headers_of_both PREPEND ${PROJECT_SOURCE_DIR}/src/)
file(GLOB headers_of_both RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS ${headers_of_both})
set(digests)
foreach(header IN LISTS headers_of_both)
  file(SHA256 ${PROJECT_SOURCE_DIR}/${header} digest)
  string(APPEND digests "${header} ${digest}\n")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${header})
endforeach()
string(SHA256 LUCEBOX_KERNEL_ABI "${digests}")
string(SUBSTRING ${LUCEBOX_KERNEL_ABI} 0 16 LUCEBOX_KERNEL_ABI)
