# Devices: one driver table per vendor, and the classes built on the table.
target_sources(lucebox_engine PRIVATE
  device/device.cpp
  device/driver.cpp
  device/driver_cuda.cpp
  device/driver_error.cpp
  device/driver_hip.cpp
  device/driver_sim.cpp
  device/sim_thread.cpp
  device/elf.cpp
  device/graph.cpp
  device/library.cpp
  device/memory.cpp
  device/module.cpp
  device/numa.cpp
  device/queue.cpp
  device/sim_image.cpp)
