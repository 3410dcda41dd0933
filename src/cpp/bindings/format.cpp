// Model files for Python: metadata as plain values, tensors as descriptions.
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>

#include <filesystem>

#include "base/error.h"
#include "bindings/bindings.h"
#include "format/gguf.h"
#include "format/model_file.h"
#include "format/safetensors.h"
#include "format/text.h"
#include "quant/planes.h"

namespace nb = nanobind;

namespace lb {
namespace {

using Path = std::filesystem::path;

nb::object to_python(const GgufValue& value, const GgufMetadata& metadata, const GgufEntry& entry) {
  switch (value.type()) {
    case GgufType::kString:
      LB_CHECK(is_utf8(value.string()), kFormat, metadata.file(), ": at byte ", entry.offset, ": metadata key ",
               quoted(entry.key), ": ", quoted(value.string()), " is not valid UTF-8");
      return nb::str(value.string().data(), value.string().size());
    case GgufType::kArray: {
      nb::list items;
      value.for_each([&](const GgufValue& element) { items.append(to_python(element, metadata, entry)); });
      return items;
    }
    case GgufType::kBool: return nb::bool_(value.boolean());
    case GgufType::kF32:
    case GgufType::kF64: return nb::float_(value.floating());
    case GgufType::kU64: return nb::int_(value.unsigned_integer());
    default: return nb::int_(value.signed_integer());
  }
}

nb::dict to_python(const GgufMetadata& metadata) {
  nb::dict out;
  for (const GgufEntry& entry : metadata.all())
    out[nb::str(entry.key.data(), entry.key.size())] = to_python(entry.value, metadata, entry);
  return out;
}

nb::object to_python(const Json& json) {
  if (json.is_null()) return nb::none();
  if (json.is_boolean()) return nb::bool_(json.boolean());
  if (json.is_integer()) return nb::int_(json.integer());
  if (json.is_number()) return nb::float_(json.number());
  if (json.is_string()) return nb::str(json.string().data(), json.string().size());
  if (json.is_array()) {
    nb::list items;
    for (const Json& item : json.array()) items.append(to_python(item));
    return items;
  }
  nb::dict members;
  for (const auto& [key, value] : json.members()) members[nb::str(key.data(), key.size())] = to_python(value);
  return members;
}

// (name, dtype, shape, file, offset, bytes) of each tensor, in file order.
nb::list to_python(const TensorTable& table) {
  nb::list out;
  for (const TensorView& tensor : table.all()) {
    nb::list shape;
    for (const int64_t dim : tensor.shape) shape.append(dim);
    const std::string_view type = type_name(tensor);
    out.append(nb::make_tuple(tensor.name, nb::str(type.data(), type.size()), nb::tuple(shape), tensor.file,
                              tensor.offset, tensor.bytes));
  }
  return out;
}

nb::bytes read_tensor(const TensorTable& table, const std::string& tensor_name) {
  const TensorView* tensor = table.find(tensor_name);
  LB_CHECK(tensor, kInvalid, "no tensor is named ", quoted(tensor_name));
  return nb::bytes(tensor->data, tensor->bytes);
}

}  // namespace

void bind_format(nb::module_& m) {
  nb::class_<GgufFile>(m, "GgufFile", "An open GGUF file or split set.")
      .def(
          "__init__", [](GgufFile* self, const Path& path) { new (self) GgufFile(open_gguf(path.string())); },
          nb::arg("path"))
      .def_ro("version", &GgufFile::version)
      .def_ro("alignment", &GgufFile::alignment)
      .def_prop_ro(
          "metadata", [](const GgufFile& self) { return to_python(self.metadata); },
          "The metadata as a new dict of plain values; arrays are lists.")
      .def_prop_ro(
          "tensors", [](const GgufFile& self) { return to_python(self.tensors); },
          "The tensors as a new list of (name, dtype, shape, file, offset, bytes).")
      .def(
          "read_tensor", [](const GgufFile& self, const std::string& name) { return read_tensor(self.tensors, name); },
          nb::arg("name"), "Copies the tensor's bytes.");
  nb::class_<SafetensorsModel>(m, "Safetensors", "An open checkpoint folder.")
      .def(
          "__init__",
          [](SafetensorsModel* self, const Path& folder) {
            new (self) SafetensorsModel(open_safetensors(folder.string()));
          },
          nb::arg("folder"))
      .def_ro("folder", &SafetensorsModel::folder)
      .def_prop_ro(
          "config", [](const SafetensorsModel& self) { return to_python(self.config); }, "config.json as a new dict.")
      .def_prop_ro(
          "tensors", [](const SafetensorsModel& self) { return to_python(self.tensors); },
          "The tensors as a new list of (name, dtype, shape, file, offset, bytes).")
      .def(
          "read_tensor",
          [](const SafetensorsModel& self, const std::string& name) { return read_tensor(self.tensors, name); },
          nb::arg("name"), "Copies the tensor's bytes.");
  m.def(
      "device_type",
      [](const std::string& type) {
        const std::optional<DType> own = dtype_from_name(type);
        return own ? std::string(name(quant::device_type(*own))) : type;
      },
      nb::arg("type"), "Name of the type in which a GPU stores weights of this type.");
  m.def(
      "open_model_file",
      [](const Path& path) -> nb::object {
        ModelFile file = open_model_file(path.string());
        if (auto* gguf = std::get_if<GgufFile>(&file.content)) return nb::cast(std::move(*gguf));
        return nb::cast(std::move(std::get<SafetensorsModel>(file.content)));
      },
      nb::arg("path"), nb::sig("def open_model_file(path: str | os.PathLike) -> GgufFile | Safetensors"),
      "Opens a GGUF file, a checkpoint folder, or a folder with one GGUF.");
}

}  // namespace lb
