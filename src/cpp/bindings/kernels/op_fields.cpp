#include "bindings/kernels/op_fields.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

#include "bindings/names.h"
#include "quant/repack.h"

namespace lb::kernels {
namespace {

constexpr size_t kGuardBytes = 256;  // on either side of an output

std::string text(const std::vector<long>& values) {
  std::string list;
  for (long value : values) list += (list.empty() ? "" : ", ") + (value < 0 ? "any" : std::to_string(value));
  return "[" + list + "]";
}

std::vector<long> sizes(Axes axes) {
  std::vector<long> result;
  for (const Axis& axis : axes) result.push_back(axis.size());
  return result;
}

std::vector<long> contiguous(const std::vector<long>& shape) {
  std::vector<long> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

std::string text(nb::dlpack::dtype dtype) {
  const char* kind = dtype.code == uint8_t(nb::dlpack::dtype_code::Float)  ? "float"
                     : dtype.code == uint8_t(nb::dlpack::dtype_code::UInt) ? "uint"
                                                                           : "int";
  return kind + std::to_string(dtype.bits);
}

// Copies between a strided array and a contiguous array with the same values.
template <bool kGather>
void copy(std::byte* strided, std::byte* packed, const std::vector<long>& shape, const std::vector<long>& strides,
          size_t item) {
  const long count = std::accumulate(shape.begin(), shape.end(), 1L, std::multiplies<>());
  if (strides == contiguous(shape)) {
    std::copy_n(kGather ? strided : packed, count * item, kGather ? packed : strided);
    return;
  }
  for (long i = 0; i < count; ++i) {
    long rest = i, offset = 0;
    for (size_t axis = shape.size(); axis-- > 0; rest /= shape[axis]) offset += rest % shape[axis] * strides[axis];
    std::byte *a = strided + offset * long(item), *b = packed + i * long(item);
    kGather ? std::memcpy(b, a, item) : std::memcpy(a, b, item);
  }
}

nb::object numpy_array(std::unique_ptr<std::byte[]> values, const std::vector<long>& shape, nb::dlpack::dtype dtype) {
  const std::vector<size_t> sizes(shape.begin(), shape.end());
  std::byte* data = values.release();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<std::byte*>(p); });
  return nb::ndarray<nb::numpy>(data, sizes.size(), sizes.data(), owner, nullptr, dtype).cast();
}

}  // namespace

std::byte* OpMemory::random(size_t bytes, uint64_t seed) {
  std::vector<uint64_t> values((std::min<size_t>(bytes, 64 << 20) + 7) / 8);
  for (uint64_t& value : values) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    value = seed ^= seed << 17;
  }
  std::byte* data = reserve(bytes);
  const size_t piece = values.size() * 8;
  for (size_t at = 0; at < bytes; at += piece) upload(data + at, values.data(), std::min(piece, bytes - at));
  return data;
}

size_t OpFields::Field::count() const {
  return size_t(std::accumulate(shape.begin(), shape.end(), 1L, std::multiplies<>()));
}

size_t OpFields::Field::span() const {
  long last = 0;
  for (size_t i = 0; i < shape.size(); ++i) last += (shape[i] - 1) * strides[i];
  return count() == 0 ? 0 : size_t(last + 1) * item();
}

OpFields::OpFields(OpMemory& memory, std::string op, const nb::dict& given, Links links)
    : memory_(memory), what_("[" + op + "] "), links_(std::move(links)) {
  for (const auto& [key, value] : given)
    if (!value.is_none()) given_[key] = value;
}

nb::object OpFields::take(const char* name) {
  names_.emplace_back(name);
  if (!is_given(name)) return {};
  nb::object value = given_[name];
  nb::del(given_[name]);
  return value;
}

std::string OpFields::word(const char* name, const char* choices) {
  const nb::object value = take(name);
  LB_CHECK(value.is_valid() && nb::isinstance<nb::str>(value), kInvalid, what_, name, " must be ", choices);
  return nb::cast<std::string>(value);
}

void OpFields::number(const char* name, const void* field, std::function<void(long)> set, bool is_optional) {
  const nb::object value = take(name);
  if (value.is_valid())
    set(nb::cast<long>(value));
  else
    missing_.emplace(field, Missing{name, std::move(set), is_optional});
}

void OpFields::scalar(const char* name, float& value) {
  const nb::object given = take(name);
  LB_CHECK(given.is_valid(), kInvalid, what_, name, " is missing");
  value = float(nb::cast<double>(given));
}

void OpFields::scalar(const char* name, DType& value) {
  value = dtype_named(word(name, "the name of an element type"));
}

void OpFields::scalar(const char* name, KvType& value) { value = kv_type_named(word(name, "the name of a KV type")); }

void OpFields::scalar(const char* name, RopePairs& value) {
  const std::string text = word(name, "halves or adjacent");
  LB_CHECK(text == "halves" || text == "adjacent", kInvalid, name, " must be halves or adjacent, got ", text);
  value = text == "halves" ? RopePairs::kHalves : RopePairs::kAdjacent;
}

void OpFields::scalar(const char* name, HeadOrder& value) {
  const std::string text = word(name, "grouped or tiled");
  LB_CHECK(text == "grouped" || text == "tiled", kInvalid, name, " must be grouped or tiled, got ", text);
  value = text == "grouped" ? HeadOrder::kGrouped : HeadOrder::kTiled;
}

void OpFields::scalar(const char* name, Activations& value) {
  value = activations_named(word(name, "int8, f32 or fp4"));
}

AnyArray OpFields::array(const char* name, nb::handle value) {
  AnyArray array;
  LB_CHECK(nb::try_cast(value, array), kInvalid, what_, name, " must be an array");
  return arrays_.emplace_back(std::move(array));
}

OpFields::Field& OpFields::add(const char* name, Access access, nb::dlpack::dtype dtype, Axes shape, Axes strides,
                               std::function<void(std::byte*)> set) {
  const nb::object value = take(name);
  if (access == Access::kOut) return add_out(name, dtype, sizes(shape), std::move(set), value);
  LB_CHECK(value.is_valid(), kInvalid, what_, name, " is missing");
  if (nb::isinstance<nb::int_>(value) && dtype == nb::dtype<int32_t>()) {
    if (shape.size() == 1) infer(shape.begin()[0], 1);
    LB_CHECK(sizes(shape) == std::vector<long>{1}, kInvalid, what_, name, " must be an array");
    const int32_t number = nb::cast<int32_t>(value);
    const auto* bytes = reinterpret_cast<const std::byte*>(&number);
    const std::byte* host = owned_.emplace_back(bytes, bytes + sizeof number).data();
    return fields_.emplace_back(Field{name, access, dtype, {1}, {1}, host, std::move(set)});
  }
  const AnyArray given = array(name, value);
  LB_CHECK(given.dtype() == dtype, kInvalid, what_, name, " must be ", text(dtype), ", got ", text(given.dtype()));
  Field added{name, access, dtype, {}, {}, static_cast<const std::byte*>(given.data()), std::move(set)};
  for (size_t i = 0; i < given.ndim(); ++i) added.shape.push_back(long(given.shape(i)));
  std::vector<long> wanted(shape.size(), kAnySize);
  bool same = added.shape.size() == shape.size();
  for (size_t i = 0; i < shape.size(); ++i) {
    if (added.shape.size() == shape.size()) infer(shape.begin()[i], added.shape[i]);
    if (!missing_.contains(shape.begin()[i].field)) wanted[i] = shape.begin()[i].size();
    same = same && (wanted[i] == kAnySize || wanted[i] == added.shape[i]);
  }
  LB_CHECK(same, kInvalid, what_, name, " must have shape ", text(wanted), ", got ", text(added.shape));
  added.strides = contiguous(added.shape);
  for (size_t i = 0; i < shape.size() && added.count() > 0; ++i) {
    if (added.shape[i] > 1) added.strides[i] = given.stride(i);  // numpy leaves the stride of a length-1 axis undefined
    long stride = contiguous(added.shape)[i];
    if (strides.size() > 0) {
      infer(strides.begin()[i], added.strides[i]);
      stride = strides.begin()[i].size();
    }
    LB_CHECK(added.shape[i] <= 1 || (added.strides[i] == stride && stride > 0), kInvalid, what_, name,
             " must have a stride of ", stride, " values along axis ", i, ", got ", added.strides[i]);
  }
  return fields_.emplace_back(std::move(added));
}

OpFields::Field& OpFields::add_out(const char* name, nb::dlpack::dtype dtype, std::vector<long> shape,
                                   std::function<void(std::byte*)> set, const nb::object& in_place_of) {
  std::vector<long> strides = contiguous(shape);
  Field added{name, Access::kOut, dtype, std::move(shape), std::move(strides), nullptr, std::move(set)};
  if (in_place_of.is_valid()) {
    LB_CHECK(nb::isinstance<nb::str>(in_place_of), kInvalid, what_, name,
             " is an output: it may be given the name of an input whose memory it takes");
    const Field& input = field(nb::cast<std::string>(in_place_of));
    LB_CHECK(input.host && input.span() == added.span(), kInvalid, what_, name, " does not fit ", input.name);
    added.host = input.host;
  }
  return fields_.emplace_back(std::move(added));
}

void OpFields::infer(const Axis& axis, long value) {
  if (const auto missing = missing_.find(axis.field); missing != missing_.end()) {
    missing->second.set(value);
    missing_.erase(missing);
  }
}

void OpFields::weights(const char* name, const void*& p, DType& type, int& n_out, const int& n_in) {
  const nb::object value = take(name);
  LB_CHECK(value.is_valid(), kInvalid, what_, name, " is missing");
  if (nb::isinstance<nb::int_>(value)) {
    p = memory_.random(quant::checked_plane_layout(type, n_out, n_in).bytes, nb::cast<uint64_t>(value));
    return;
  }
  const AnyArray blocks = array(name, value);
  LB_CHECK(blocks.dtype() == nb::dtype<uint8_t>() && blocks.ndim() == 1 && (blocks.size() < 2 || blocks.stride(0) == 1),
           kInvalid, what_, name, " must be the bytes of the blocks");
  LB_CHECK(n_in > 0, kInvalid, what_, "rows of ", name, " must have values");
  quant::checked_plane_layout(type, n_out, n_in);
  infer(n_out, long(blocks.size() / row_bytes(type, size_t(n_in))));
  LB_CHECK(blocks.size() == row_bytes(type, size_t(n_in)) * n_out, kInvalid, what_, name, " [", n_out, ", ", n_in,
           "] of ", lb::name(type), " is ", row_bytes(type, size_t(n_in)) * n_out, " bytes, got ", blocks.size());
  p = memory_.weights(blocks, type, n_out, n_in);
}

// Plain floats as [pages, n_kv_heads, 64, head_dim]; packed types as bytes, [pages, n_kv_heads, 64, bytes of a slot].
void OpFields::pages(const char* name, void*& p, KvType type, const int& n_kv_heads, const int& head_dim,
                     Access access) {
  LB_CHECK(is_given(name), kInvalid, what_, name, " is missing");
  const AnyArray given = array(name, given_[name]);
  const size_t bits = kKvTraits[int(type)].bits, item = bits < 16 ? 1 : bits / 8;
  LB_CHECK(given.itemsize() == item, kInvalid, what_, name, " of ", kv_name(type), " holds values of ", item,
           " bytes, got ", given.itemsize());
  const auto place = [&p](std::byte* at) { p = at; };
  const int slot_bytes = int(kv_slot_bytes(type, head_dim));
  const Field& pages =
      bits < 16 ? add(name, access, given.dtype(), {kAnySize, n_kv_heads, kPageTokens, slot_bytes}, {}, place)
                : add(name, access, given.dtype(), {kAnySize, n_kv_heads, kPageTokens, head_dim}, {}, place);
  LB_CHECK(n_pages_ == 0 || n_pages_ == pages.shape[0], kInvalid, what_, "K and V must have as many pages");
  n_pages_ = pages.shape[0];
}

void OpFields::rounded(const char* name, RoundedRows& rows_out, int rows, int n_in) {
  const nb::object value = take(name);
  if (!value.is_valid()) return;
  const int bits = nb::cast<int>(value);
  LB_CHECK(bits == 8 || bits == 16, kInvalid, what_, name, " has 8 or 16 bits, got ", bits);
  add_out(name, nb::dtype<uint8_t>(), {long(rounded_bytes(rows, n_in, bits == 16))},
          [&rows_out, rows, n_in, bits](std::byte* at) { rows_out = rounded_rows(at, rows, n_in, bits == 16); }, {});
}

OpFields::Field* OpFields::find(const std::string& name) {
  const auto found = std::ranges::find(fields_, name, &Field::name);
  return found == fields_.end() ? nullptr : &*found;
}

OpFields::Field& OpFields::field(const std::string& name) {
  Field* found = find(name);
  LB_CHECK(found, kInvalid, what_, "no array is named ", name);
  return *found;
}

long OpFields::largest(const char* name, long none) {
  const Field* field = find(name);
  if (!field || field->count() == 0) return none;
  const auto* values = reinterpret_cast<const int32_t*>(field->host);
  return *std::max_element(values, values + field->count());
}

void OpFields::reserve(Region& region) {
  const size_t guard = region.is_written ? kGuardBytes : 0;
  region.data = memory_.reserve(region.bytes + 2 * guard) + guard;
  if (region.host) memory_.upload(region.data, region.host, region.bytes);
}

void OpFields::place() {
  for (const auto& [field, missing] : missing_)
    LB_CHECK(missing.is_optional, kInvalid, what_, missing.name, " is missing");
  if (given_.size() > 0) {
    std::string known;
    for (const std::string& name : names_) known += (known.empty() ? "" : ", ") + name;
    const auto [unknown, value] = *given_.begin();
    fail(ErrorCode::kInvalid, what_, "has no field ", nb::cast<std::string>(unknown), "; its fields are ", known);
  }
  // Overlapping arrays are merged into one region.
  std::vector<Field*> by_address;
  for (Field& field : fields_) by_address.push_back(&field);
  std::ranges::sort(by_address, {}, &Field::host);
  for (Field* field : by_address) {
    const bool shares = field->host && !regions_.empty() && field->span() > 0 && regions_.back().host &&
                        field->host < regions_.back().host + regions_.back().bytes;
    if (!shares) regions_.push_back({field->host, 0, false});
    Region& region = regions_.back();
    field->region = int(regions_.size()) - 1;
    field->offset = field->host ? size_t(field->host - region.host) : 0;
    region.bytes = std::max(region.bytes, field->offset + field->span());
    region.is_written |= field->access != Access::kIn;
  }
  for (Region& region : regions_) reserve(region);
  for (const Field& field : fields_) field.set(at(field));
  for (const auto& set : later_) set();
}

// A region's bytes after the op. Only its written fields may differ from their former contents.
std::vector<std::byte> OpFields::read(const Region& region, int index) {
  const size_t guard = region.is_written ? kGuardBytes : 0;
  std::vector<std::byte> all(region.bytes + 2 * guard);
  memory_.download(all.data(), region.data - guard, all.size());
  const auto is_intact = [&](auto begin) {
    return std::all_of(begin, begin + long(guard), [](std::byte b) { return b == std::byte{0xff}; });
  };
  LB_CHECK(is_intact(all.begin()), kInternal, what_, "wrote before an output of ", region.bytes, " bytes");
  LB_CHECK(is_intact(all.end() - long(guard)), kInternal, what_, "wrote past an output of ", region.bytes, " bytes");
  std::vector<std::byte> after(all.begin() + long(guard), all.end() - long(guard));
  if (!region.host) return after;
  std::vector<std::byte> expected(region.host, region.host + region.bytes);
  for (const Field& field : fields_) {
    if (field.region != index || field.access == Access::kIn) continue;
    std::vector<std::byte> values(field.count() * field.item());
    copy<true>(after.data() + field.offset, values.data(), field.shape, field.strides, field.item());
    copy<false>(expected.data() + field.offset, values.data(), field.shape, field.strides, field.item());
  }
  LB_CHECK(expected == after, kInternal, what_, "wrote to what is no output of it");
  return after;
}

nb::dict OpFields::results() {
  nb::dict result;
  for (int i = 0; i < int(regions_.size()); ++i) {
    std::vector<std::byte> bytes = read(regions_[i], i);
    for (const Field& field : fields_) {
      if (field.region != i || field.access == Access::kIn) continue;
      auto values = std::make_unique<std::byte[]>(field.count() * field.item());
      copy<true>(bytes.data() + field.offset, values.get(), field.shape, field.strides, field.item());
      result[field.name.c_str()] = numpy_array(std::move(values), field.shape, field.dtype);
    }
  }
  return result;
}

}  // namespace lb::kernels
