// Reading and writing walk the layers in the same order, over SequenceState::snapshot_parts.
#include "state/pieces.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/error.h"

namespace lb {
namespace {

// Parts of layers, in the order of a piece.
using Parts = std::vector<std::span<std::byte>>;

// Pages [first, first + count) of each layer that keeps all rows.
Parts page_parts(const SequenceState& state, int first, int count) {
  Parts parts;
  for (int layer = 0; layer < static_cast<int>(state.layers().size()); ++layer) {
    if (!state.keeps_all_rows(layer)) continue;
    for (const std::span<std::byte> part : state.snapshot_parts(layer, (first + count) * kPageTokens))
      parts.push_back(part.subspan(first * (part.size() / (first + count))));
  }
  return parts;
}

// The parts of every other layer at a length.
Parts recurrent_parts(const SequenceState& state, int n_tokens) {
  Parts parts;
  for (int layer = 0; layer < static_cast<int>(state.layers().size()); ++layer)
    if (!state.keeps_all_rows(layer))
      std::ranges::copy(state.snapshot_parts(layer, n_tokens), std::back_inserter(parts));
  return parts;
}

size_t bytes_of(const Parts& parts) {
  size_t bytes = 0;
  for (const auto& part : parts) bytes += part.size();
  return bytes;
}

void read(SequenceState& state, const Parts& parts, std::span<std::byte> to) {
  for (const auto& part : parts) {
    state.stream().download(to.data(), part.data(), part.size());
    to = to.subspan(part.size());
  }
  std::ranges::fill(to, std::byte{0});  // a ring of fewer rows than its window has fewer pages
}

void write(SequenceState& state, const Parts& parts, std::span<const std::byte> from) {
  for (const auto& part : parts) {
    state.stream().upload(part.data(), from.data(), part.size());
    from = from.subspan(part.size());
  }
}

void check_pages(const SequenceState& state, int first, int count, size_t bytes) {
  const int n_pages = (state.capacity() + kPageTokens - 1) / kPageTokens;
  LB_CHECK(first >= 0 && count >= 1 && count <= n_pages - first, kInvalid, "pages ", first, " to ", first + count - 1,
           " are not among the ", n_pages, " of the context");
  LB_CHECK(bytes == count * page_bytes(state), kInvalid, count, " pages have ", count * page_bytes(state),
           " bytes, got ", bytes);
}

void check_recurrent(const SequenceState& state, size_t bytes) {
  LB_CHECK(bytes == recurrent_bytes(state), kInvalid, "the recurrent state has ", recurrent_bytes(state),
           " bytes, got ", bytes);
}

}  // namespace

size_t page_bytes(const SequenceState& state) { return bytes_of(page_parts(state, 0, 1)); }
size_t recurrent_bytes(const SequenceState& state) { return bytes_of(recurrent_parts(state, state.capacity())); }

void read_pages(SequenceState& state, int first, int count, std::span<std::byte> to) {
  check_pages(state, first, count, to.size());
  read(state, page_parts(state, first, count), to);
}

void write_pages(SequenceState& state, int first, int count, std::span<const std::byte> from) {
  check_pages(state, first, count, from.size());
  write(state, page_parts(state, first, count), from);
}

void read_recurrent(SequenceState& state, std::span<std::byte> to) {
  check_recurrent(state, to.size());
  state.fold();
  read(state, recurrent_parts(state, state.n_tokens()), to);
}

void write_recurrent(SequenceState& state, int n_tokens, std::span<const std::byte> from) {
  check_recurrent(state, from.size());
  write(state, recurrent_parts(state, n_tokens), from);
}

}  // namespace lb
