# Shape and target to kernel and geometry: pure functions, no driver.
target_sources(lucebox_engine PRIVATE
  launch/elementwise.cpp launch/launch.cpp launch/linear.cpp launch/linear_batch.cpp launch/pack.cpp
  launch/target.cpp)
