// Untrusted safetensors files: the tensors of an accepted file tile the data of the input.
#include "format/safetensors.h"
#include "fuzz_target.h"

namespace {

std::string file(std::string header, size_t data_bytes) {
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  std::string out(reinterpret_cast<const char*>(&length), sizeof length);
  return out + header + std::string(data_bytes, '\x3F');
}

}  // namespace

std::vector<std::string> seed_inputs() {
  return {
      file("{}", 0),
      file(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", 24),
      file(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[4],"data_offsets":[8,16]},)"
           R"("a":{"dtype":"F16","shape":[2,2,1],"data_offsets":[0,8]}})",
           16),
      file(
          R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"t":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
          8),
  };
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const HeapCopy input(data, size);
  const bool accepted = refuse_or_parse([&] {
    uint64_t covered = size;
    unsigned sum = 0;
    for (const lb::TensorView& tensor : lb::parse_safetensors(input.bytes(), "input")) {
      require(tensor.data == input.bytes().data() + tensor.offset && tensor.bytes > 0);
      require(covered == size || tensor.offset == covered);
      covered = tensor.offset + tensor.bytes;
      for (const std::byte byte : std::span(tensor.data, tensor.bytes)) sum += std::to_integer<unsigned>(byte);
    }
    require(covered == size && sum <= 255 * size);
  });
  return accepted ? 0 : -1;
}
