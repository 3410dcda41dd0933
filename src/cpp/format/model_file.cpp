// Chooses the format from the files on disk; if none fits, the error lists the files found.
#include "format/model_file.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "format/mapped_file.h"
#include "format/text.h"

namespace lb {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxListed = 8;

std::vector<std::string> list_folder(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename().string());
  LB_CHECK(!error, kIo, printable(folder), ": cannot list: ", error.message());
  std::sort(names.begin(), names.end());
  return names;
}

std::string names_text(const std::vector<std::string>& names) {
  if (names.empty()) return "nothing";
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMaxListed); ++i) text += (i ? ", " : "") + printable(names[i]);
  return names.size() > kMaxListed ? cat(text, " and ", names.size() - kMaxListed, " more") : text;
}

// Names of GGUF models: single files and the first parts of split sets.
std::vector<std::string> gguf_models(const std::vector<std::string>& names) {
  std::vector<std::string> models;
  for (const std::string& name : names) {
    const auto split = split_name(name);
    if (name.ends_with(".gguf") && (!split || split->number == 1)) models.push_back(name);
  }
  return models;
}

ModelFile open_folder(const std::string& folder) {
  if (has_safetensors(folder)) return {folder, open_safetensors(folder)};
  const std::vector<std::string> names = list_folder(folder);
  const std::vector<std::string> models = gguf_models(names);
  LB_CHECK(!models.empty(), kFormat, printable(folder),
           ": expected config.json with model.safetensors (or its index), or one .gguf file; found ",
           names_text(names));
  LB_CHECK(models.size() == 1, kFormat, printable(folder), ": expected one GGUF model, found ", models.size(), " (",
           names_text(models), "); name one of them");
  const std::string path = (fs::path(folder) / models[0]).string();
  return {path, open_gguf(path)};
}

}  // namespace

const TensorTable& ModelFile::tensors() const {
  return gguf() ? gguf()->tensors : std::get<SafetensorsModel>(content).tensors;
}

std::string ModelFile::identity() const {
  std::string text;
  const std::string* file = nullptr;  // of the previous tensor
  for (const TensorView& tensor : tensors().all()) {
    if (tensor.bytes == 0 || (file != nullptr && tensor.file == *file)) continue;
    file = &tensor.file;
    text += cat(MappedFile::identity(tensor.data), ' ');
  }
  return text;
}

void ModelFile::check_intact() const {
  if (!MappedFile::any_lost()) return;
  for (const TensorView& tensor : tensors().all()) MappedFile::check_intact(tensor.data, tensor.file);
}

ModelFile open_model_file(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  LB_CHECK(status.type() != fs::file_type::not_found, kIo, printable(path), ": no such file or folder");
  LB_CHECK(!error, kIo, printable(path), ": ", error.message());
  if (fs::is_directory(status)) return open_folder(path);
  LB_CHECK(!path.ends_with(".safetensors"), kFormat, printable(path),
           ": a checkpoint is opened by its folder, which also holds config.json");
  return {path, open_gguf(path)};
}

}  // namespace lb
