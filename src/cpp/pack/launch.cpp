// Prints a launch.
#include "pack/launch.h"

#include <ostream>
#include <sstream>

namespace lb::gpu {

std::ostream& operator<<(std::ostream& out, const Launch& launch) {
  out << launch.kernel << "<<<[" << launch.grid[0] << ", " << launch.grid[1] << ", " << launch.grid[2] << "], ["
      << launch.block[0] << ", " << launch.block[1] << ", " << launch.block[2] << "], " << launch.shared_bytes
      << " B>>>";
  if (launch.cooperative) out << " cooperative";
  if (launch.is_one_wave) out << " one wave";
  if (launch.cluster) out << " cluster " << launch.cluster;
  if (launch.overlap_previous) out << " overlap";
  return out;
}

std::string to_string(const Launch& launch) {
  std::ostringstream out;
  out << launch;
  return out.str();
}

}  // namespace lb::gpu
