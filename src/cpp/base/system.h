// What the machine has.
#pragma once

#include <cstddef>

namespace lb {

// Bytes that can be taken without swapping: the system's estimate, or less where a control group limits this process.
size_t available_memory();
// Physical cores this process may use.
int usable_cores();

}  // namespace lb
