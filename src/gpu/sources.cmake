# The host code of the kernels: op and target to kernel, grid and parameters. Pure functions, no driver.
set(gpu ${CMAKE_CURRENT_LIST_DIR})
target_sources(lucebox_engine PRIVATE
  ${gpu}/choose_batched.cpp
  ${gpu}/attention/choose.cpp
  ${gpu}/attention/choose_config.cpp
  ${gpu}/attention/choose_selection.cpp
  ${gpu}/delta_net/choose.cpp
  ${gpu}/draft/choose.cpp
  ${gpu}/elementwise/choose.cpp
  ${gpu}/experts/choose.cpp
  ${gpu}/experts/choose_grouped.cpp
  ${gpu}/experts/choose_slots.cpp
  ${gpu}/gemm/choose.cpp
  ${gpu}/gemm/choose_cast.cpp
  ${gpu}/gemm/choose_config.cpp
  ${gpu}/gemm/choose_sm90.cpp
  ${gpu}/gemm_skinny/choose.cpp
  ${gpu}/gemm_skinny/choose_config.cpp
  ${gpu}/gemv/choose.cpp
  ${gpu}/linear_group.cpp
  ${gpu}/megakernel/schedule/assign.cpp
  ${gpu}/megakernel/schedule/compile.cpp
  ${gpu}/megakernel/schedule/mailboxes.cpp
  ${gpu}/megakernel/schedule/print.cpp
  ${gpu}/megakernel/schedule/ranks.cpp
  ${gpu}/megakernel/schedule/record.cpp
  ${gpu}/megakernel/schedule/record_mixture.cpp
  ${gpu}/megakernel/schedule/stream.cpp
  ${gpu}/megakernel/schedule/teams.cpp
  ${gpu}/megakernel/schedule/weight_chunks.cpp
  ${gpu}/ranks/choose.cpp
  ${gpu}/sampling/choose.cpp)
