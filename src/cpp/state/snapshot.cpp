// Layout: a header of magic, version, CRC-32 of the body and body size, then the body: fingerprint, KV types, token
// count, tokens, and every part of every layer with its size.
#include "state/snapshot.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"

namespace lb {
namespace {

constexpr char kMagic[8] = {'L', 'B', 'S', 'N', 'A', 'P', '\r', '\n'};
constexpr uint32_t kVersion = 3;

struct Header {
  char magic[8];
  uint32_t version, crc;
  uint64_t body_bytes;
};

uint32_t crc32(std::span<const std::byte> bytes) {
  static constexpr auto kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int k = 0; k < 8; ++k) c = (c >> 1) ^ (c & 1 ? 0xedb88320u : 0);
      table[i] = c;
    }
    return table;
  }();
  uint32_t crc = ~0u;
  for (std::byte b : bytes) crc = kTable[(crc ^ static_cast<uint32_t>(b)) & 255] ^ (crc >> 8);
  return ~crc;
}

class Writer {
 public:
  void put(const void* data, size_t bytes) {
    const auto* p = static_cast<const std::byte*>(data);
    out_.insert(out_.end(), p, p + bytes);
  }
  template <class T>
  void value(const T& v) {
    put(&v, sizeof(v));
  }
  // Appends `bytes` uninitialised bytes for the caller to fill. The pointer is valid until the next call.
  std::byte* grow(size_t bytes) {
    out_.resize(out_.size() + bytes);
    return out_.data() + out_.size() - bytes;
  }
  std::vector<std::byte> take() { return std::move(out_); }

 private:
  std::vector<std::byte> out_ = std::vector<std::byte>(sizeof(Header));
};

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& where) : bytes_(bytes), where_(where) {}
  std::span<const std::byte> take(size_t n) {
    LB_CHECK(n <= bytes_.size() - offset_, kFormat, where_, ": the snapshot ends at byte ", bytes_.size(), "; ", n,
             " bytes expected at ", offset_);
    offset_ += n;
    return bytes_.subspan(offset_ - n, n);
  }
  template <class T>
  T value() {
    T v;
    std::memcpy(&v, take(sizeof(T)).data(), sizeof(T));
    return v;
  }
  bool done() const { return offset_ == bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
  const std::string& where_;
  size_t offset_ = 0;
};

}  // namespace

std::vector<std::byte> save_snapshot(SequenceState& state, std::span<const int32_t> tokens,
                                     const std::string& fingerprint) {
  LB_ASSERT(tokens.size() == static_cast<size_t>(state.n_tokens()));
  state.fold();
  Writer out;
  out.value(static_cast<uint32_t>(fingerprint.size()));
  out.put(fingerprint.data(), fingerprint.size());
  out.value(state.options().k_type);
  out.value(state.options().v_type);
  out.value(static_cast<uint32_t>(tokens.size()));
  out.put(tokens.data(), tokens.size_bytes());
  for (size_t layer = 0; layer < state.layers().size(); ++layer)
    for (const auto& [shard, parts] : state.snapshot_parts(static_cast<int>(layer), state.n_tokens()))
      for (const StatePart& part : parts) {
        out.value(uint64_t{bytes_of(part)});
        for (const auto& piece : part)
          state.stream_of(shard).download(out.grow(piece.size()), piece.data(), piece.size());
      }
  std::vector<std::byte> bytes = out.take();
  const std::span body = std::span(bytes).subspan(sizeof(Header));
  Header header{{}, kVersion, crc32(body), body.size()};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
}

std::vector<int32_t> load_snapshot(std::span<const std::byte> bytes, SequenceState& state, int vocab,
                                   const std::string& fingerprint, const std::string& where) {
  LB_CHECK(bytes.size() >= sizeof(Header), kFormat, where, ": ", bytes.size(),
           " bytes are too few for a session snapshot");
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  LB_CHECK(std::memcmp(header.magic, kMagic, sizeof(kMagic)) == 0, kFormat, where, ": not a lucebox session snapshot");
  LB_CHECK(header.version == kVersion, kUnsupported, where, ": snapshot version ", header.version,
           "; this lucebox reads ", kVersion);
  const auto body = bytes.subspan(sizeof(Header));
  LB_CHECK(header.body_bytes == body.size(), kFormat, where, ": the header states ", header.body_bytes,
           " bytes after it, found ", body.size());
  LB_CHECK(header.crc == crc32(body), kFormat, where, ": checksum mismatch; the snapshot is damaged");

  Reader in(body, where);
  const auto saved_fingerprint = in.take(in.value<uint32_t>());
  LB_CHECK(std::string_view(reinterpret_cast<const char*>(saved_fingerprint.data()), saved_fingerprint.size()) ==
               fingerprint,
           kUnsupported, where, ": the snapshot belongs to another model or to other settings");
  const KvType k_type = in.value<KvType>(), v_type = in.value<KvType>();
  LB_CHECK(k_type == state.options().k_type && v_type == state.options().v_type, kUnsupported, where,
           ": the snapshot has other KV types than this session");
  const uint32_t n = in.value<uint32_t>();
  LB_CHECK(n <= static_cast<uint32_t>(state.capacity()), kUnsupported, where, ": the snapshot holds ", n,
           " tokens; this session's context is ", state.capacity());
  std::vector<int32_t> tokens(n);
  std::ranges::copy(in.take(n * sizeof(int32_t)), std::as_writable_bytes(std::span(tokens)).begin());
  for (uint32_t i = 0; i < n; ++i)
    LB_CHECK(tokens[i] >= 0 && tokens[i] < vocab, kFormat, where, ": token ", i, " is ", tokens[i],
             "; the vocabulary has ", vocab, " tokens");

  std::vector<std::span<const std::byte>> parts;
  for (int layer = 0; layer < static_cast<int>(state.layers().size()); ++layer)
    for (const uint64_t expected : state.part_bytes(layer, static_cast<int>(n))) {
      const uint64_t size = in.value<uint64_t>();
      LB_CHECK(size == expected, kFormat, where, ": a part of layer ", layer, " has ", size, " bytes; expected ",
               expected);
      parts.push_back(in.take(size));
    }
  LB_CHECK(in.done(), kFormat, where, ": bytes left over after the last layer");
  state.set_pages(0, std::vector(n_pages(static_cast<int>(n)), SequenceState::kOwnPage));
  auto from = parts.begin();
  for (int layer = 0; layer < static_cast<int>(state.layers().size()); ++layer)
    for (const auto& [shard, all] : state.snapshot_parts(layer, static_cast<int>(n)))
      for (const StatePart& part : all) {
        std::span<const std::byte> rest = *from++;
        for (const auto& piece : part) {
          state.stream_of(shard).upload(piece.data(), rest.data(), piece.size());
          rest = rest.subspan(piece.size());
        }
      }
  state.restore_length(static_cast<int>(n));
  return tokens;
}

}  // namespace lb
