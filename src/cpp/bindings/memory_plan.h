// Converts memory plans to Python.
#pragma once

#include <nanobind/nanobind.h>

#include "engine/memory_plan.h"

namespace lb {

nanobind::dict dict_of_plan(const MemoryPlan& plan);

}  // namespace lb
