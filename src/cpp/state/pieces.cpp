// The pool reads and writes pages; everything else goes through SequenceState::snapshot_parts.
#include "state/pieces.h"

#include <set>
#include <vector>

#include "base/error.h"

namespace lb {
namespace {

// Contiguous memory of one layer, in its shard's stream.
struct Piece {
  Stream& stream;
  std::span<std::byte> memory;
};

bool is_recurrent(const SequenceState& state, int layer) { return folds(state.layers()[layer]); }

std::vector<Piece> recurrent_pieces(const SequenceState& state) {
  std::vector<Piece> pieces;
  for (int layer = 0; layer < static_cast<int>(state.layers().size()); ++layer)
    if (is_recurrent(state, layer))
      for (const auto& [shard, parts] : state.snapshot_parts(layer, state.n_tokens()))
        for (const StatePart& part : parts)
          for (const std::span<std::byte> memory : part) pieces.push_back({state.stream_of(shard), memory});
  return pieces;
}

void wait_for(const std::vector<Piece>& pieces) {
  std::set<Stream*> streams;
  for (const Piece& piece : pieces) streams.insert(&piece.stream);
  for (Stream* stream : streams) stream->wait();
}

void check_pages(const SequenceState& state, int first, int count, size_t bytes) {
  const auto n_pages = std::ssize(state.pages());
  LB_CHECK(first >= 0 && count >= 1 && count <= n_pages - first, kInvalid, "pages ", first, " to ", first + count - 1,
           " are not among the ", n_pages, " of the sequence");
  LB_CHECK(bytes == count * page_bytes(state), kInvalid, count, " pages have ", count * page_bytes(state),
           " bytes, got ", bytes);
}

void check_windows(const SequenceState& state, int n_tokens, size_t bytes) {
  const int n = state.n_window_pages(n_tokens);
  LB_CHECK(bytes == n * window_page_bytes(state), kInvalid, "the window of ", n_tokens, " tokens has ",
           n * window_page_bytes(state), " bytes, got ", bytes);
}

void check_recurrent(const SequenceState& state, size_t bytes) {
  LB_CHECK(bytes == recurrent_bytes(state), kInvalid, "the recurrent state has ", recurrent_bytes(state),
           " bytes, got ", bytes);
}

}  // namespace

size_t page_bytes(const SequenceState& state) { return state.pool()->page_bytes(); }
size_t window_page_bytes(const SequenceState& state) {
  return state.window_pool() ? state.window_pool()->page_bytes() : 0;
}
size_t recurrent_bytes(const SequenceState& state) {
  size_t bytes = 0;
  for (int layer = 0; layer < static_cast<int>(state.layers().size()); ++layer)
    if (is_recurrent(state, layer))
      for (const uint64_t part : state.part_bytes(layer, state.capacity())) bytes += part;
  return bytes;
}

void read_pages(SequenceState& state, int first, int count, std::span<std::byte> to) {
  check_pages(state, first, count, to.size());
  state.pool()->read(state.pages().subspan(first, count), to);
}

void write_pages(SequenceState& state, int first, int count, std::span<const std::byte> from) {
  check_pages(state, first, count, from.size());
  state.pool()->write(state.pages().subspan(first, count), from);
}

void read_windows(SequenceState& state, int n_tokens, std::span<std::byte> to) {
  check_windows(state, n_tokens, to.size());
  if (!to.empty()) state.window_pool()->read(state.window_pages(n_tokens), to);
}

void write_windows(SequenceState& state, int n_tokens, std::span<const std::byte> from) {
  check_windows(state, n_tokens, from.size());
  if (!from.empty()) state.window_pool()->write(state.window_pages(n_tokens), from);
}

void read_recurrent(SequenceState& state, std::span<std::byte> to) {
  check_recurrent(state, to.size());
  state.fold();
  const std::vector<Piece> pieces = recurrent_pieces(state);
  for (const auto& [stream, memory] : pieces) {
    stream.download_async(to.data(), memory.data(), memory.size());
    to = to.subspan(memory.size());
  }
  wait_for(pieces);
}

void write_recurrent(SequenceState& state, std::span<const std::byte> from) {
  check_recurrent(state, from.size());
  const std::vector<Piece> pieces = recurrent_pieces(state);
  for (const auto& [stream, memory] : pieces) {
    stream.upload_async(memory.data(), from.data(), memory.size());
    from = from.subspan(memory.size());
  }
  wait_for(pieces);
}

}  // namespace lb
