// Reads a Hugging Face checkpoint folder: config.json with model.safetensors, or with an index and its shards.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "format/json.h"
#include "format/tensor_table.h"

namespace lb {

struct SafetensorsModel {
  Json config;
  std::string config_text;  // the text of config.json
  TensorTable tensors;
  std::string folder;
};

SafetensorsModel open_safetensors(const std::string& folder);

// Whether the folder has the files that open_safetensors reads; does not look at their content.
bool has_safetensors(const std::string& folder);

// Reads one file from memory; bytes must start on an 8-byte boundary and outlive the views.
std::vector<TensorView> parse_safetensors(std::span<const std::byte> bytes, const std::string& where);

}  // namespace lb
