// The parameters of every test kernel.
#pragma once

#include "dialect.h"

namespace lb::gpu {

struct Io {
  const void* in;
  void* out;
  uint32_t* counter;
  int n;
};

}  // namespace lb::gpu
