// Converts the sessions and ids of a pass from Python.
#pragma once

#include <vector>

#include "base/error.h"
#include "bindings/ids.h"
#include "engine/pass.h"

namespace lb {

inline std::vector<SegmentRequest> segment_requests(const std::vector<Session*>& sessions,
                                                    const std::vector<Ids>& ids) {
  LB_CHECK(sessions.size() == ids.size(), kInvalid, ids.size(), " token lists for ", sessions.size(), " sessions");
  std::vector<SegmentRequest> requests;
  for (size_t i = 0; i < sessions.size(); ++i) requests.push_back({sessions[i], span(ids[i])});
  return requests;
}

}  // namespace lb
