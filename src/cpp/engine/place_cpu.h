// The CPU as the place of an engine.
#pragma once

#include "engine/place.h"

namespace lb {

std::unique_ptr<Place> cpu_place();

}  // namespace lb
