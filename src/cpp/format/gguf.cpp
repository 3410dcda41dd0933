// Parses the layout of a GGUF file (header, metadata, tensor infos, aligned data) and joins the parts of a split set.
#include "format/gguf.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "format/gguf_reader.h"
#include "format/mapped_file.h"
#include "format/text.h"

namespace lb {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMinAlignment = 8;  // the format's minimum; also the size of the widest type read in place
constexpr uint32_t kMaxDims = 4;
constexpr size_t kMaxKeyBytes = 65535;
constexpr size_t kMaxNameBytes = 1024;
// Far above any model. Bounds the tables that a large hostile file can make the parser allocate.
constexpr uint64_t kMaxEntries = 1 << 20;
constexpr size_t kMinKeyBytes = 8 + 1 + 4 + 1;         // length, one letter, type, a one-byte value
constexpr size_t kMinTensorBytes = 8 + 1 + 4 + 4 + 8;  // length, one letter, zero dimensions, type, offset

uint64_t checked_product(uint64_t a, uint64_t b, const GgufReader& in, size_t at) {
  uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product) || product > std::numeric_limits<int64_t>::max())
    in.fail_at(ErrorCode::kFormat, at, "the size ", a, " x ", b, " overflows");
  return product;
}

uint32_t read_version(GgufReader& in) {
  const uint32_t magic = in.u32("the magic");
  if (magic != kMagic) in.fail_at(ErrorCode::kFormat, 0, "not a GGUF file: expected the letters GGUF");
  const uint32_t version = in.u32("the version");
  if ((version & 0xFFFF) == 0 && version != 0)
    in.fail_at(ErrorCode::kUnsupported, 4, "this GGUF is big endian; convert it to little endian");
  if (version == 1)
    in.fail_at(ErrorCode::kUnsupported, 4, "GGUF version 1 is not supported; convert the model again (version 2 or 3)");
  if (version == 0 || version > 3)
    in.fail_at(ErrorCode::kUnsupported, 4, "expected GGUF version 2 or 3, found ", version);
  return version;
}

uint64_t read_count(GgufReader& in, const char* what, size_t min_bytes) {
  const size_t start = in.at();
  const uint64_t count = in.u64(what);
  if (count > kMaxEntries)
    in.fail_at(ErrorCode::kFormat, start, "expected at most ", kMaxEntries, " ", what, ", found ", count);
  if (count > in.left() / min_bytes)
    in.fail_at(ErrorCode::kFormat, start, count, " ", what, " cannot fit into the ", in.left(), " bytes left");
  return count;
}

// Reads a key or tensor name. Names are shown, compared and passed to Python, so they must be valid UTF-8.
std::string_view read_name(GgufReader& in, const char* what, size_t max_bytes) {
  const size_t start = in.at();
  const std::string_view name = in.string(what);
  if (name.empty() || name.size() > max_bytes)
    in.fail_at(ErrorCode::kFormat, start, "expected 1 to ", max_bytes, " bytes of ", what, ", found ", name.size());
  if (!is_utf8(name)) in.fail_at(ErrorCode::kFormat, start, what, " ", quoted(name), " is not valid UTF-8");
  return name;
}

std::vector<GgufEntry> read_metadata(GgufReader& in, uint64_t count) {
  std::vector<GgufEntry> entries;
  entries.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    in.set_subject(cat("metadata key number ", i));
    const size_t start = in.at();
    const std::string_view key = read_name(in, "a key", kMaxKeyBytes);
    in.set_subject(cat("metadata key ", quoted(key)));
    entries.push_back({key, in.value(in.type("a value type")), start});
  }
  in.set_subject("");
  return entries;
}

// Reads one tensor info. Its offset is relative to the data section; resolve_offsets() sets data and file.
TensorView read_tensor_info(GgufReader& in) {
  TensorView tensor;
  tensor.name = read_name(in, "a tensor name", kMaxNameBytes);
  in.set_subject(cat("tensor ", quoted(tensor.name)));

  const size_t start = in.at();
  const uint32_t n_dims = in.u32("the number of dimensions");
  if (n_dims > kMaxDims)
    in.fail_at(ErrorCode::kFormat, start, "expected at most ", kMaxDims, " dimensions, found ", n_dims);
  uint64_t ne[kMaxDims] = {1, 1, 1, 1};  // innermost first
  uint64_t values = 1;
  for (uint32_t d = 0; d < n_dims; ++d) {
    ne[d] = in.u64("a dimension");
    values = checked_product(values, ne[d], in, start);
  }
  tensor.shape.assign(std::reverse_iterator(ne + n_dims), std::reverse_iterator(ne));

  const size_t type_at = in.at();
  const uint32_t type_id = in.u32("the tensor type");
  const DTypeInfo* type = ggml_type_info(type_id);
  if (type == nullptr)
    in.fail_at(ErrorCode::kUnsupported, type_at, "tensor type number ", type_id,
               " is not supported; requantise the model, for example to Q8_0 or Q4_K_M");
  const std::optional<DType> own = dtype_from_ggml(type_id);
  tensor.type = own.value_or(DType::kF32);
  if (!own) tensor.foreign_type = type->name;
  if (ne[0] % type->block_values != 0)
    in.fail_at(ErrorCode::kFormat, start, "a row of ", ne[0], " values is not a whole number of ", type->name,
               " blocks of ", type->block_values);
  tensor.bytes = checked_product(values / type->block_values, type->block_bytes, in, start);
  tensor.offset = in.u64("the data offset");
  return tensor;
}

std::vector<TensorView> read_tensor_infos(GgufReader& in, uint64_t count) {
  std::vector<TensorView> tensors;
  for (uint64_t i = 0; i < count; ++i) {
    in.set_subject(cat("tensor number ", i));
    tensors.push_back(read_tensor_info(in));
  }
  in.set_subject("");
  return tensors;
}

void refuse_overlap(const std::vector<TensorView>& tensors) {
  std::vector<const TensorView*> by_offset;
  by_offset.reserve(tensors.size());
  for (const TensorView& tensor : tensors) by_offset.push_back(&tensor);
  std::sort(by_offset.begin(), by_offset.end(), [](auto* a, auto* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < by_offset.size(); ++i) {
    const TensorView &before = *by_offset[i - 1], &after = *by_offset[i];
    LB_CHECK(before.offset + before.bytes <= after.offset, kFormat, to_string(after), ": overlaps ", to_string(before),
             ", which has ", before.bytes, " bytes");
  }
}

// Turns offsets relative to the data section into offsets and pointers into `bytes`.
void resolve_offsets(std::vector<TensorView>& tensors, std::span<const std::byte> bytes, size_t infos_end,
                     uint64_t alignment, const std::string& where) {
  if (tensors.empty()) return;
  const uint64_t data_start =
      (infos_end + (alignment - 1)) / alignment * alignment;  // infos_end < 2^63, alignment < 2^32
  LB_CHECK(data_start <= bytes.size(), kFormat, where, ": at byte ", infos_end, ": expected tensor data from byte ",
           data_start, ", the file ends at ", bytes.size());
  const uint64_t data_bytes = bytes.size() - data_start;
  for (TensorView& tensor : tensors) {
    LB_CHECK(tensor.offset % alignment == 0, kFormat, where, ": tensor ", quoted(tensor.name), ": data offset ",
             tensor.offset, " is not a multiple of the alignment ", alignment);
    LB_CHECK(tensor.offset <= data_bytes && tensor.bytes <= data_bytes - tensor.offset, kFormat, where, ": tensor ",
             quoted(tensor.name), ": expected ", tensor.bytes, " bytes at data offset ", tensor.offset, " (byte ",
             data_start, " of the file on), the data section has ", data_bytes);
    tensor.offset += data_start;
    tensor.data = bytes.data() + tensor.offset;
    tensor.file = where;
  }
  refuse_overlap(tensors);
}

uint64_t read_alignment(const GgufMetadata& metadata) {
  const uint64_t alignment = metadata.find_uint("general.alignment").value_or(kDefaultAlignment);
  LB_CHECK(std::has_single_bit(alignment) && alignment >= kMinAlignment && alignment <= UINT32_MAX, kFormat,
           metadata.file(), ": metadata key \"general.alignment\": expected a power of two of at least ", kMinAlignment,
           ", found ", alignment);
  return alignment;
}

std::string part_path(const GgufSplitName& name, uint32_t number) {
  char tail[32];
  std::snprintf(tail, sizeof tail, "-%05u-of-%05u.gguf", number, name.count);
  return name.stem + tail;
}

GgufFile open_one(const std::string& path) {
  auto file = MappedFile::open(path);
  return parse_gguf(file->bytes(), printable(path), file);
}

void check_part(const GgufMetadata& part, const GgufMetadata& first, uint32_t number) {
  const auto expect = [&](const char* key, uint64_t expected) {
    const uint64_t found = part.uint(key);
    LB_CHECK(found == expected, kFormat, part.file(), ": metadata key ", quoted(key), ": expected ", expected,
             " for this part of the set, found ", found);
  };
  expect("split.no", number - 1);
  expect("split.count", first.uint("split.count"));
  expect("split.tensors.count", first.uint("split.tensors.count"));
}

}  // namespace

GgufFile parse_gguf(std::span<const std::byte> bytes, const std::string& where, std::shared_ptr<const void> owner) {
  LB_ASSERT(reinterpret_cast<uintptr_t>(bytes.data()) % kMinAlignment == 0);
  const std::string_view start(reinterpret_cast<const char*>(bytes.data()), std::min<size_t>(bytes.size(), 128));
  const std::string_view other = foreign_content(start);
  LB_CHECK(other.empty(), kFormat, where, ": not a GGUF file: ", other);
  GgufReader in(bytes, where);
  GgufFile file;
  file.version = read_version(in);
  const uint64_t n_tensors = read_count(in, "tensors", kMinTensorBytes);
  const uint64_t n_keys = read_count(in, "metadata keys", kMinKeyBytes);
  file.metadata = GgufMetadata(where, read_metadata(in, n_keys), owner);
  file.alignment = read_alignment(file.metadata);
  std::vector<TensorView> tensors = read_tensor_infos(in, n_tensors);
  resolve_offsets(tensors, bytes, in.at(), file.alignment, where);
  file.tensors = TensorTable(std::move(tensors), {std::move(owner)});
  return file;
}

std::optional<GgufSplitName> split_name(const std::string& path) {
  constexpr std::string_view kPattern = "-00000-of-00000.gguf";  // 0 stands for any digit
  if (path.size() <= kPattern.size()) return std::nullopt;
  const size_t stem = path.size() - kPattern.size();
  const std::string_view tail = std::string_view(path).substr(stem);
  for (size_t i = 0; i < kPattern.size(); ++i) {
    const bool digit = tail[i] >= '0' && tail[i] <= '9';
    if (kPattern[i] == '0' ? !digit : tail[i] != kPattern[i]) return std::nullopt;
  }
  GgufSplitName name{path.substr(0, stem), 0, 0};
  std::from_chars(tail.data() + 1, tail.data() + 6, name.number);
  std::from_chars(tail.data() + 10, tail.data() + 15, name.count);
  if (name.number < 1 || name.number > name.count) return std::nullopt;
  return name;
}

GgufFile open_gguf(const std::string& path) {
  const std::optional<GgufSplitName> name = split_name(path);
  LB_CHECK(!name || name->number == 1, kFormat, printable(path), ": this is part ", name->number, " of ", name->count,
           "; open the first part, ", printable(part_path(*name, 1)));
  GgufFile file = open_one(path);
  const uint64_t count = file.metadata.find_uint("split.count").value_or(1);
  const uint32_t named_count = name ? name->count : 1;
  LB_CHECK(std::max<uint64_t>(count, 1) == named_count, kFormat, printable(path),
           ": metadata key \"split.count\" says ", count, " parts, the file name says ", named_count,
           "; a split set keeps its names NAME-00001-of-0000N.gguf");
  if (count <= 1) return file;

  check_part(file.metadata, file.metadata, 1);
  std::vector<TensorView> tensors = file.tensors.all();
  std::vector<std::shared_ptr<const void>> owners = file.tensors.owners();
  for (uint32_t number = 2; number <= named_count; ++number) {
    const std::string part_name = part_path(*name, number);
    LB_CHECK(std::filesystem::exists(part_name), kFormat, printable(path), ": part ", number, " of ", named_count, ", ",
             printable(part_name), ", is missing; all parts must lie in one folder");
    const GgufFile part = open_one(part_name);
    check_part(part.metadata, file.metadata, number);
    tensors.insert(tensors.end(), part.tensors.all().begin(), part.tensors.all().end());
    owners.insert(owners.end(), part.tensors.owners().begin(), part.tensors.owners().end());
  }
  const uint64_t expected = file.metadata.uint("split.tensors.count");
  LB_CHECK(tensors.size() == expected, kFormat, printable(path), ": metadata key \"split.tensors.count\": expected ",
           expected, " tensors in the ", count, " parts, found ", tensors.size());
  file.tensors = TensorTable(std::move(tensors), std::move(owners));
  return file;
}

}  // namespace lb
