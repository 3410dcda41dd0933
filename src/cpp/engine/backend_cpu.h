// The CPU backend.
#pragma once

#include "engine/backend.h"

namespace lb {

std::unique_ptr<Backend> cpu_backend();

}  // namespace lb
