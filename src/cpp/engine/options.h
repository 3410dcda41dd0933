// User options for opening a model: to generate (EngineOptions) or to score prompts (ScorerOptions).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "cpu/cpu_stream.h"
#include "ops/append.h"
#include "ops/linear.h"
#include "quant/kv_names.h"

namespace lb {

// How a GPU decodes a token: a recorded graph with a launch per op, or one launch of the megakernel.
enum class DecodePath { kAuto, kGraph, kMegakernel };

// Options common to generation and scoring.
struct ModelOptions {
  int context = 0;    // tokens; 0: the model's maximum, or the largest that fits
  int n_threads = 0;  // 0: one per usable core
  Isa isa = Isa::kPortable;
  Activations activations = Activations::kInt8;
  KvTypes kv;
  int prefill_chunk = 0;    // rows of a prompt computed together; 0: the backend's default
  size_t memory_limit = 0;  // most bytes of the device's free memory that a plan may use; 0: all
};

struct EngineOptions : ModelOptions {
  // Capacity of the shared KV cache in tokens; 0: `sessions` full contexts, or as many tokens as fit, at least one
  // context.
  int kv_tokens = 0;
  int sessions = 1;                     // that the plan reserves memory for; more may share the KV cache
  DecodePath path = DecodePath::kAuto;  // kAuto: the faster one on the target; the CPU supports kAuto only
  // Drafter: "none", "suffix", "mtp" (the block in the model's file) or a drafter's file; to combine a draft model with
  // the suffix drafter: "mtp+suffix" or "FILE+suffix".
  std::string draft = "none";
  static constexpr std::string_view kWithSuffix = "+suffix";
  int draft_budget = 0;          // tokens of a draft; 0: chosen for each step
  float sparse_prefill = 0;      // alpha of SelectBlocks, for block-sparse attention of prompts; 0: dense attention
  bool batch_invariant = false;  // one session's tokens have the bits they would have in a batch of several; no drafts

  bool drafts() const { return draft != "none"; }
  bool drafts_suffixes() const { return draft == "suffix" || draft.ends_with(kWithSuffix); }
  std::string draft_model() const;  // "mtp" or a file; empty: no draft model
  int tree_rows() const { return drafts() ? (draft_budget == 0 ? kMaxTree : draft_budget + 1) : 0; }
};

struct ScorerOptions : ModelOptions {
  int rows = 8;            // number of last prompt rows whose attention scores the tokens
  float sparse_alpha = 0;  // as EngineOptions::sparse_prefill
};

}  // namespace lb
