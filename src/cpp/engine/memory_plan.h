// MemoryPlan: all memory that an engine or a scorer will use, entry by entry.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "quant/kv_names.h"

namespace lb {

struct PlanEntry {
  std::string name;
  size_t bytes;
  std::string detail;
  bool per_session = false;  // reserved once per session; other entries once per engine
};

// A KV type that the model's heads support.
struct KvFit {
  KvTypes kv;
  size_t token_bytes;   // in layers that keep all rows, including a draft model's
  int largest_context;  // tokens that fit; 0: none
};

// Where the experts of a mixture are; n == 0: no mixture.
struct ExpertPlan {
  int n = 0, used = 0;    // experts of a layer, and those that a row chooses
  int slots = 0;          // experts of a layer in device memory
  int layers = 0;         // of the model
  size_t slot_bytes = 0;  // one expert of every layer
  size_t host_bytes = 0;  // host memory with all experts; 0: all are in device memory
  bool is_pinned = true;  // the host memory; known after the load
};

struct MemoryPlan {
  std::string device;                // "cpu", "cuda:0", "cuda:0,cuda:1"
  std::vector<PlanEntry> entries;    // private memory
  size_t mapped_bytes = 0;           // weights read from the file's mapping, shared with the page cache
  size_t available_bytes = 0;        // free memory of the device when the plan was made
  size_t bytes_per_token = 0;        // weights that a decoded token reads: of a mixture, only the chosen experts
  int n_layers = 0;                  // of the model
  ExpertPlan experts;                // of a mixture
  int context = 0, max_context = 0;  // tokens: of this plan; the model's limit
  int kv_tokens = 0;                 // of the KV cache
  int window_sessions = 0;           // sessions for whose windows it has pages; 0: no layer has a window
  int largest_context = 0;           // tokens: the longest context that fits; 0: none
  std::vector<KvFit> kv_fits;        // one per type (the same for K and V), largest first
  // The plan of each device, for a model on several devices; the entries above are then the sum.
  std::vector<MemoryPlan> parts;
  std::vector<MemoryPlan> vision;  // of a vision tower on a device of its own, whose memory is not counted above
  size_t total_bytes() const;      // sum of the entries, with one session
  size_t session_bytes() const;    // sum of the entries per session
};

}  // namespace lb
