// Parses the JSON header, whose offsets must tile the data exactly, and checks that index and shards list the same
// tensors.
#include "format/safetensors.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <set>
#include <system_error>

#include "base/error.h"
#include "format/mapped_file.h"
#include "format/text.h"

namespace lb {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxDims = 8;
constexpr std::string_view kSuffix = ".safetensors";

int64_t non_negative(const Json& json) {
  const int64_t value = json.integer();
  LB_CHECK(value >= 0, kFormat, json.where(), ": expected a number >= 0, found ", value);
  return value;
}

// Keeps the name of a type that the engine cannot compute with: an error only if a used tensor has it.
void read_dtype(const Json& json, const std::string& tensor_text, TensorView& tensor) {
  const std::string& name = json.string();
  constexpr size_t kMaxName = 32;
  LB_CHECK(!name.empty() && name.size() <= kMaxName, kFormat, json.where(), ": ", tensor_text, ": ", quoted(name),
           " is no name of a dtype");
  tensor.type = DType::kF32;
  for (DType own : {DType::kF32, DType::kF16, DType::kBF16})
    if (name == info(own).name) {
      tensor.type = own;
      return;
    }
  tensor.foreign_type = printable(name);
}

// Bits of a value of a dtype; 0 when unknown.
uint64_t dtype_bits(const TensorView& tensor) {
  if (tensor.foreign_type.empty()) return 8 * info(tensor.type).block_bytes;
  constexpr std::pair<std::string_view, uint64_t> kForeign[] = {
      {"F64", 64},    {"I64", 64},    {"U64", 64},    {"I32", 32},    {"U32", 32}, {"I16", 16},
      {"U16", 16},    {"I8", 8},      {"U8", 8},      {"BOOL", 8},    {"C64", 64}, {"F8_E4M3", 8},
      {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},
  };
  for (const auto& [name, bits] : kForeign)
    if (tensor.foreign_type == name) return bits;
  return 0;
}

uint64_t tensor_bits(const TensorView& tensor, const Json& shape) {
  uint64_t bits = dtype_bits(tensor);
  for (const int64_t dim : tensor.shape)
    if (__builtin_mul_overflow(bits, static_cast<uint64_t>(dim), &bits) || bits > std::numeric_limits<int64_t>::max())
      fail(ErrorCode::kFormat, shape.where(), ": tensor ", quoted(tensor.name), ": the size of shape ",
           shape_text(tensor.shape), " overflows");
  return bits;
}

// Reads one entry of the header and turns its offset into the data into an offset into the file.
TensorView read_entry(const Json::Member& member, std::span<const std::byte> data, uint64_t data_start,
                      const std::string& where) {
  const auto& [key, entry] = member;
  const std::string tensor_text = cat("tensor ", quoted(key));
  LB_CHECK(!key.empty(), kFormat, entry.where(), ": a tensor has an empty name");
  for (const Json::Member& field : entry.members())
    LB_CHECK(field.key == "dtype" || field.key == "shape" || field.key == "data_offsets", kFormat, field.value.where(),
             ": ", tensor_text, ": unknown field ", quoted(field.key));
  TensorView tensor;
  tensor.name = key;
  tensor.file = where;
  read_dtype(entry.at("dtype"), tensor_text, tensor);

  const Json& shape = entry.at("shape");
  LB_CHECK(shape.array().size() <= kMaxDims, kFormat, shape.where(), ": ", tensor_text, ": expected at most ", kMaxDims,
           " dimensions, found ", shape.array().size());
  for (const Json& dim : shape.array()) tensor.shape.push_back(non_negative(dim));
  const uint64_t bits = tensor_bits(tensor, shape);

  const Json& offsets = entry.at("data_offsets");
  LB_CHECK(offsets.array().size() == 2, kFormat, offsets.where(), ": ", tensor_text,
           ": expected two data offsets, found ", offsets.array().size());
  const auto begin = static_cast<uint64_t>(non_negative(offsets.array()[0]));
  const auto end = static_cast<uint64_t>(non_negative(offsets.array()[1]));
  LB_CHECK(begin <= end && end <= data.size(), kFormat, offsets.where(), ": ", tensor_text, ": data offsets [", begin,
           ", ", end, "] do not lie in the ", data.size(), " bytes of data");
  tensor.bytes = end - begin;
  LB_CHECK(bits == 0 || tensor.bytes == (bits + 7) / 8, kFormat, offsets.where(), ": ", tensor_text, ": shape ",
           shape_text(tensor.shape), " needs ", (bits + 7) / 8, " bytes, the data offsets span ", tensor.bytes);
  tensor.offset = data_start + begin;
  tensor.data = data.data() + begin;
  LB_CHECK(!tensor.foreign_type.empty() || tensor.offset % info(tensor.type).block_bytes == 0, kUnsupported,
           offsets.where(), ": ", tensor_text,
           ": its data is not aligned for its type; save the file again with the safetensors library");
  return tensor;
}

// Checks that `tensors`, in file order, cover the data without holes or overlaps.
void check_tiling(const std::vector<TensorView>& tensors, uint64_t data_start, uint64_t file_bytes,
                  const std::string& where) {
  uint64_t covered = data_start;
  for (const TensorView& tensor : tensors) {
    LB_CHECK(tensor.offset == covered, kFormat, to_string(tensor), ": expected its data to start at byte ", covered,
             tensor.offset < covered ? ", it overlaps the tensor before" : ", there is a hole before it");
    covered += tensor.bytes;
  }
  LB_CHECK(covered == file_bytes, kFormat, where, ": at byte ", covered, ": expected the end of the file, found ",
           file_bytes - covered, " bytes that belong to no tensor");
}

std::string join(const std::string& folder, const std::string& name) { return (fs::path(folder) / name).string(); }

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));  // a broken link exists: opening it gives the better error
}

Json read_json_file(const std::string& path) {
  const auto file = MappedFile::open(path);
  return parse_json(file->text(), printable(path));
}

// A shard must be directly in the folder. Symbolic links are followed: download caches store every file as a link.
void check_shard_name(const Json& shard) {
  const std::string& name = shard.string();
  const bool plain =
      !name.empty() && name.front() != '.' && name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
  LB_CHECK(name.size() > kSuffix.size() && name.ends_with(kSuffix) && plain, kFormat, shard.where(),
           ": expected a shard name such as \"model-00001-of-00002.safetensors\" without a folder, found ",
           quoted(name));
}

// Removes what training tools insert into names: torch.compile, FSDP and activation checkpointing anywhere,
// data-parallel and PEFT wrappers at the start. A file with adapters keeps PEFT's names.
std::string plain_name(std::string name, bool has_adapters) {
  for (const std::string_view part : {"_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."})
    for (size_t at = name.find(part); at != std::string::npos; at = name.find(part)) name.erase(at, part.size());
  if (name.starts_with("module.")) name.erase(0, 7);
  if (!has_adapters && name.starts_with("base_model.model.")) name.erase(0, 17);
  return name;
}

void open_file(const std::string& path, std::vector<TensorView>& tensors,
               std::vector<std::shared_ptr<const void>>& owners) {
  const auto file = MappedFile::open(path);
  std::vector<TensorView> found = parse_safetensors(file->bytes(), printable(path));
  tensors.insert(tensors.end(), std::make_move_iterator(found.begin()), std::make_move_iterator(found.end()));
  owners.push_back(file);
}

// Checks that every tensor of the index is in the shard that the index names, and that no shard has other tensors.
void check_index(const std::vector<Json::Member>& map, const TensorTable& table, const std::string& folder,
                 const std::string& index_path) {
  std::set<std::string_view> indexed;
  for (const auto& [name, shard] : map) {
    const std::string shard_path = printable(join(folder, shard.string()));
    const TensorView* tensor = table.find(name);
    LB_CHECK(tensor, kFormat, shard.where(), ": tensor ", quoted(name), ": expected in ", shard_path,
             ", which does not have it");
    LB_CHECK(tensor->file == shard_path, kFormat, shard.where(), ": tensor ", quoted(name), ": expected in ",
             shard_path, ", found in ", tensor->file);
    indexed.insert(name);
  }
  for (const TensorView& tensor : table.all())
    LB_CHECK(indexed.contains(tensor.name), kFormat, to_string(tensor), ": not listed in ", printable(index_path));
}

TensorTable open_shards(const std::string& folder) {
  const std::string index_path = join(folder, kIndex);
  const Json index = read_json_file(index_path);
  const std::vector<Json::Member>& map = index.at("weight_map").members();
  LB_CHECK(!map.empty(), kFormat, index.at("weight_map").where(), ": weight_map lists no tensor");
  std::set<std::string> shards;
  for (const auto& [name, shard] : map) {
    check_shard_name(shard);
    shards.insert(shard.string());
  }
  std::vector<TensorView> tensors;
  std::vector<std::shared_ptr<const void>> owners;
  for (const std::string& shard : shards) {
    const std::string path = join(folder, shard);
    LB_CHECK(exists(path), kFormat, printable(index_path), ": shard ", quoted(shard), " is listed but missing in ",
             printable(folder));
    open_file(path, tensors, owners);
  }
  TensorTable table(std::move(tensors), std::move(owners));
  check_index(map, table, folder, index_path);
  return table;
}

// The tensors by their plain names.
TensorTable with_plain_names(const TensorTable& table) {
  std::vector<TensorView> tensors = table.all();
  const bool has_adapters = std::ranges::any_of(
      tensors, [](const TensorView& tensor) { return tensor.name.find(".lora_") != std::string::npos; });
  for (TensorView& tensor : tensors) tensor.name = plain_name(std::move(tensor.name), has_adapters);
  return TensorTable(std::move(tensors), table.owners());
}

}  // namespace

std::vector<TensorView> parse_safetensors(std::span<const std::byte> bytes, const std::string& where) {
  LB_ASSERT(reinterpret_cast<uintptr_t>(bytes.data()) % kLengthBytes == 0);
  LB_CHECK(bytes.size() >= kLengthBytes, kFormat, where,
           ": at byte 0: expected 8 bytes of header length, the file has ", bytes.size());
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), kLengthBytes);
  const uint64_t left = bytes.size() - kLengthBytes;
  const bool fits = header_bytes <= kJsonMaxBytes && header_bytes <= left;
  const std::string_view start(reinterpret_cast<const char*>(bytes.data()), std::min<size_t>(bytes.size(), 128));
  const std::string_view other = fits ? std::string_view() : foreign_content(start);
  LB_CHECK(other.empty(), kFormat, where, ": not a safetensors file: ", other);
  LB_CHECK(fits, kFormat, where, ": at byte 0: expected a header of at most ", std::min<uint64_t>(kJsonMaxBytes, left),
           " bytes, found a length of ", header_bytes);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, header_bytes);
  LB_CHECK(text.starts_with('{'), kFormat, where, ": at byte 8: expected '{', the start of the header");
  const Json header = parse_json(text, where, kLengthBytes);

  const uint64_t data_start = kLengthBytes + header_bytes;
  const auto data = bytes.subspan(data_start);
  std::vector<TensorView> tensors;
  for (const Json::Member& member : header.members()) {
    if (member.key == "__metadata__") {
      for (const Json::Member& note : member.value.members()) note.value.string();
      continue;
    }
    tensors.push_back(read_entry(member, data, data_start, where));
  }
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  check_tiling(tensors, data_start, bytes.size(), where);
  return tensors;
}

bool has_safetensors(const std::string& folder) {
  return exists(join(folder, kSingle)) || exists(join(folder, kIndex));
}

SafetensorsModel open_safetensors(const std::string& folder) {
  SafetensorsModel model;
  model.folder = folder;
  LB_CHECK(has_safetensors(folder), kFormat, printable(folder), ": expected ", kSingle, " or ", kIndex,
           " in this folder");
  const std::string config = join(folder, "config.json");
  model.config_text = MappedFile::open(config)->text();
  model.config = parse_json(model.config_text, config);
  LB_CHECK(model.config.is_object(), kFormat, model.config.where(), ": expected an object");
  if (!exists(join(folder, kSingle))) {
    model.tensors = with_plain_names(open_shards(folder));
    return model;
  }
  std::vector<TensorView> tensors;
  std::vector<std::shared_ptr<const void>> owners;
  open_file(join(folder, kSingle), tensors, owners);
  model.tensors = with_plain_names(TensorTable(std::move(tensors), std::move(owners)));
  return model;
}

}  // namespace lb
