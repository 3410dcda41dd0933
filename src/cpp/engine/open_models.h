// OpenModels: opened files and the networks that point into them, before anything is reserved or loaded.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "engine/backend.h"
#include "format/model_file.h"

namespace lb {

struct OpenModels {
  std::string draft;  // as in the constructor
  ModelFile file;
  std::optional<ModelFile> draft_file;
  Models models;

  // draft: "mtp", a drafter's file, or empty. sizes: the device's; the device determines the types that the ops will
  // read.
  OpenModels(const std::string& path, const std::string& draft, const DeviceSizes& sizes);
  // A draft model of this target: the file's model, or a slice of it. Null without one.
  std::unique_ptr<DraftModel> make_draft(const Model& target) const;
  size_t file_bytes() const;
};

// Throws kInvalid unless all ids are in the vocabulary and fit the context.
void check_token_ids(std::span<const int32_t> ids, int vocab, int context);

}  // namespace lb
