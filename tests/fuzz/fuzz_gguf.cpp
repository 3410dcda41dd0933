// Untrusted GGUF files: in an accepted file, all values can be visited, all getters called and all tensor bytes read.
#include "format/gguf.h"
#include "fuzz_target.h"

namespace {

// Writes a GGUF file field by field, as raw bytes.
class Writer {
 public:
  Writer(uint32_t version, uint64_t n_tensors, uint64_t n_keys) {
    raw("GGUF", 4).put(version).put(n_tensors).put(n_keys);
  }
  template <class T>
  Writer& put(T value) {
    return raw(reinterpret_cast<const char*>(&value), sizeof value);
  }
  Writer& text(const std::string& text) { return put<uint64_t>(text.size()).raw(text.data(), text.size()); }
  Writer& key(const std::string& key, lb::GgufType type) { return text(key).put(type); }
  Writer& array(lb::GgufType type, uint64_t count) { return put(type).put(count); }
  Writer& tensor(const std::string& name, const std::vector<uint64_t>& ne, uint32_t type, uint64_t offset) {
    text(name).put<uint32_t>(ne.size());
    for (const uint64_t n : ne) put(n);
    return put(type).put(offset);
  }
  std::string data(size_t bytes) {
    out_.resize((out_.size() + 31) / 32 * 32);
    return out_ + std::string(bytes, '\x11');
  }

 private:
  Writer& raw(const char* bytes, size_t n) {
    out_.append(bytes, n);
    return *this;
  }
  std::string out_;
};

void walk(const lb::GgufValue& value) {
  require(!value.type_text().empty());
  if (value.type() == lb::GgufType::kArray) {
    uint64_t seen = 0;
    value.for_each([&](const lb::GgufValue& element) {
      require(element.type() == value.element_type());
      walk(element);
      ++seen;
    });
    require(seen == value.count());
  } else if (value.type() == lb::GgufType::kString) {
    const std::string copy(value.string());
    require(copy.size() == value.string().size());
  } else if (value.is_integer()) {
    static_cast<void>(value.is_negative() ? value.signed_integer() : static_cast<int64_t>(value.unsigned_integer()));
  } else {
    static_cast<void>(value.floating());
  }
}

void call_getters(const lb::GgufMetadata& metadata, std::string_view key) {
  refuse_or_parse([&] { static_cast<void>(metadata.uint(key)); });
  refuse_or_parse([&] { static_cast<void>(metadata.integer(key)); });
  refuse_or_parse([&] { static_cast<void>(metadata.floating(key)); });
  refuse_or_parse([&] { static_cast<void>(metadata.boolean(key)); });
  refuse_or_parse([&] { static_cast<void>(metadata.string(key)); });
  refuse_or_parse([&] { static_cast<void>(metadata.uint_array(key)); });
  refuse_or_parse([&] { static_cast<void>(metadata.int_array(key)); });
  refuse_or_parse([&] { static_cast<void>(metadata.float_array(key)); });
  refuse_or_parse([&] { static_cast<void>(metadata.string_array(key)); });
}

}  // namespace

std::vector<std::string> seed_inputs() {
  using enum lb::GgufType;
  Writer scalars(3, 1, 12);
  scalars.key("a.u8", kU8).put<uint8_t>(1).key("a.i8", kI8).put<int8_t>(-1).key("a.u16", kU16).put<uint16_t>(2);
  scalars.key("a.i16", kI16).put<int16_t>(-2).key("a.u32", kU32).put<uint32_t>(3).key("a.i32", kI32).put<int32_t>(-3);
  scalars.key("a.u64", kU64).put<uint64_t>(4).key("a.i64", kI64).put<int64_t>(-4).key("a.f32", kF32).put(0.5f);
  scalars.key("a.f64", kF64).put(0.25).key("a.yes", kBool).put<uint8_t>(1).key("general.name", kString).text("tiny");
  scalars.tensor("x", {4}, 0, 0);

  Writer arrays(2, 2, 5);
  arrays.key("general.alignment", kU32).put<uint32_t>(32);
  arrays.key("b.ints", kArray).array(kI32, 4).put<int64_t>(11).put<int64_t>(-1);
  arrays.key("b.bools", kArray).array(kBool, 4).put<uint32_t>(0x01000001);
  arrays.key("b.words", kArray).array(kString, 3).text("a").text("").text("ccc");
  arrays.key("b.deep", kArray)
      .array(kArray, 2)
      .array(kU8, 4)
      .put<uint32_t>(7)
      .array(kArray, 1)
      .array(kString, 1)
      .text("d");
  arrays.tensor("blk.0.w", {64, 2}, 8, 0).tensor("blk.0.k", {256, 1, 1, 1}, 12, 160);

  return {scalars.data(16), arrays.data(160 + 144), Writer(3, 0, 0).data(0)};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const HeapCopy input(data, size);
  const bool accepted = refuse_or_parse([&] {
    const lb::GgufFile file = lb::parse_gguf(input.bytes(), "input", nullptr);
    for (const lb::GgufEntry& entry : file.metadata.all()) {
      walk(entry.value);
      call_getters(file.metadata, entry.key);
      require(file.metadata.find(entry.key) == &entry);
    }
    call_getters(file.metadata, "no such key");
    unsigned sum = 0;
    for (const lb::TensorView& tensor : file.tensors.all()) {
      require(tensor.data == input.bytes().data() + tensor.offset);
      require(file.tensors.find(tensor.name) == &tensor);
      for (const std::byte byte : std::span(tensor.data, tensor.bytes)) sum += std::to_integer<unsigned>(byte);
    }
    require(file.tensors.total_bytes() <= size && sum <= 255 * size);
  });
  return accepted ? 0 : -1;
}
