// Reading and writing walk the layers in the same order, over SequenceState::snapshot_parts.
#include "state/pieces.h"

#include "base/error.h"

namespace lb {
namespace {

bool is_recurrent(const SequenceState& state, int layer) { return folds(state.layers()[layer]); }

// Calls visit(bytes) for each part of each recurrent layer, or for pages [first, first + count) of each attention
// layer.
template <class Visit>
void for_each_part(const SequenceState& state, bool recurrent, int first, int count, Visit&& visit) {
  for (int layer = 0; layer < static_cast<int>(state.layers().size()); ++layer) {
    if (is_recurrent(state, layer) != recurrent) continue;
    for (const std::span<std::byte> part : state.snapshot_parts(layer, (first + count) * kPageTokens)) {
      const size_t page = recurrent ? 0 : part.size() / (first + count);
      visit(part.subspan(first * page));
    }
  }
}

size_t part_bytes(const SequenceState& state, bool recurrent, int count) {
  size_t bytes = 0;
  for_each_part(state, recurrent, 0, count, [&](std::span<std::byte> part) { bytes += part.size(); });
  return bytes;
}

void read(SequenceState& state, bool recurrent, int first, int count, std::span<std::byte> to) {
  for_each_part(state, recurrent, first, count, [&](std::span<std::byte> part) {
    state.stream().download(to.data(), part.data(), part.size());
    to = to.subspan(part.size());
  });
}

void write(SequenceState& state, bool recurrent, int first, int count, std::span<const std::byte> from) {
  for_each_part(state, recurrent, first, count, [&](std::span<std::byte> part) {
    state.stream().upload(part.data(), from.data(), part.size());
    from = from.subspan(part.size());
  });
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

size_t page_bytes(const SequenceState& state) { return part_bytes(state, false, 1); }
size_t recurrent_bytes(const SequenceState& state) { return part_bytes(state, true, 1); }

void read_pages(SequenceState& state, int first, int count, std::span<std::byte> to) {
  check_pages(state, first, count, to.size());
  read(state, false, first, count, to);
}

void write_pages(SequenceState& state, int first, int count, std::span<const std::byte> from) {
  check_pages(state, first, count, from.size());
  write(state, false, first, count, from);
}

void read_recurrent(SequenceState& state, std::span<std::byte> to) {
  check_recurrent(state, to.size());
  state.fold();
  read(state, true, 0, 1, to);
}

void write_recurrent(SequenceState& state, std::span<const std::byte> from) {
  check_recurrent(state, from.size());
  write(state, true, 0, 1, from);
}

}  // namespace lb
