// Memory and cores that this process may use.
#pragma once

#include <cstddef>

namespace lb {

// Bytes that can be allocated without swapping: the system's estimate, capped by the process's control group.
size_t available_memory();
// Bytes of this process's private memory that the system has committed.
// Memory that the system does not report counts as committed.
size_t private_memory();
// Physical cores in the process's affinity mask.
int usable_cores();

}  // namespace lb
