// Opens the model at a user's path: a GGUF file, a checkpoint folder, or a folder with one GGUF file.
#pragma once

#include <string>
#include <variant>

#include "format/gguf.h"
#include "format/safetensors.h"

namespace lb {

struct ModelFile {
  std::string path;  // the file or folder that was opened; the first part of a split set
  std::variant<GgufFile, SafetensorsModel> content;

  const TensorTable& tensors() const;
  const GgufFile* gguf() const { return std::get_if<GgufFile>(&content); }
  const SafetensorsModel* safetensors() const { return std::get_if<SafetensorsModel>(&content); }
  // MappedFile::identity() of every file with tensors.
  std::string identity() const;
  // Throws kIo if one of the mapped files became shorter and its lost bytes were read.
  void check_intact() const;
};

ModelFile open_model_file(const std::string& path);

}  // namespace lb
