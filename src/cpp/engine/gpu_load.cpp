// Loads weights onto a GPU. A range of rows is laid out like a separate matrix: a slot holds its planes at the offsets
// of plane_layout(). Each plane of the range is a contiguous slice of the whole matrix's plane.
#include "engine/gpu_load.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <numeric>
#include <utility>

#include "base/dtype.h"
#include "base/error.h"
#include "base/system.h"
#include "base/thread_pool.h"
#include "device/memory.h"
#include "dispatch/staged_experts.h"
#include "format/mapped_file.h"
#include "quant/repack.h"

namespace lb {
namespace {

constexpr int kSlots = 2;            // per worker: double buffering of conversion and copy
constexpr int kReadAheadRounds = 2;  // ranges per worker; 64 MiB for 16 workers

struct Range {
  const WeightCopy* weight;
  int first_row, n_rows;

  const Matrix& matrix() const { return weight->from; }
  // The file's memory of the rows, with the columns and rows between a rank's pieces.
  std::span<const std::byte> in_file() const {
    const int file_n_in = matrix().pieces ? matrix().pieces->n_in : matrix().n_in;
    const size_t row = row_bytes(matrix().block_type, file_n_in);
    const int first = file_row(first_row), last = file_row(first_row + n_rows - 1);
    return {static_cast<const std::byte*>(matrix().data) + first * row, (last - first + 1) * row};
  }
  // The rows' blocks; pieces are gathered in `room`.
  const std::byte* blocks(std::vector<std::byte>& room) const {
    LB_ASSERT(matrix().layout == WeightLayout::kBlocks);
    const MatrixPieces* pieces = matrix().pieces.get();
    if (pieces == nullptr) return in_file().data();
    const DTypeInfo& type = info(matrix().block_type);
    const size_t row = row_bytes(matrix().block_type, pieces->n_in);
    const auto* data = static_cast<const std::byte*>(matrix().data);
    room.resize(bytes());
    std::byte* to = room.data();
    for (int i = 0; i < n_rows; ++i) {
      const std::byte* from = data + file_row(first_row + i) * row;
      to = std::copy_n(from, type.header_bytes, to);
      for (const SplitRange& columns : pieces->columns)
        to = std::copy_n(from + row_bytes(matrix().block_type, columns.first),
                         size_t(columns.count) / type.block_values * type.block_bytes, to);
    }
    return room.data();
  }
  int file_row(int row) const {
    if (!matrix().pieces) return row;
    for (const SplitRange& range : matrix().pieces->rows) {
      if (row < range.count) return range.first + row;
      row -= range.count;
    }
    fail(ErrorCode::kInternal, matrix().name, " has no row ", row);
  }
  size_t bytes() const { return n_rows * row_bytes(matrix().block_type, matrix().n_in); }
  quant::PlaneLayout layout() const { return quant::checked_plane_layout(matrix().type, n_rows, matrix().n_in); }
};

// Rows whose planes fit in a slot at any alignment; at least 1.
int rows_of_slot(const Matrix& m, size_t slot_bytes) {
  const quant::PlaneLayout row = quant::checked_plane_layout(m.type, 1, m.n_in);
  const size_t per_row = std::accumulate(row.row_bytes, row.row_bytes + row.n_planes, size_t(0));
  const size_t alignment = row.n_planes * quant::kPlaneAlignment;
  const size_t rows = slot_bytes > alignment ? (slot_bytes - alignment) / per_row : 0;
  return static_cast<int>(std::clamp<size_t>(rows, 1, m.n_out));
}

std::vector<Range> ranges_of(const std::vector<WeightCopy>& weights, size_t slot_bytes) {
  std::vector<Range> ranges;
  for (const WeightCopy& weight : weights) {
    const int step = rows_of_slot(weight.from, slot_bytes), n_out = weight.from.n_out;
    for (int row = 0; row < n_out; row += step) ranges.push_back({&weight, row, std::min(step, n_out - row)});
  }
  return ranges;
}

// A worker's queue and its two slots of pinned memory.
class Lane {
 public:
  Lane(const gpu::Device& device, std::byte* memory, size_t slot_bytes)
      : queue_(device), slots_{{gpu::Event(device), memory}, {gpu::Event(device), memory + slot_bytes}} {}
  // The device must not read a slot after it is freed. A failed copy has already thrown in load() or finish().
  ~Lane() {
    try {
      queue_.synchronize();
    } catch (const Error&) {
    }
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void load(const Range& range) {
    const Slot& slot = slots_[next_slot_++ % kSlots];
    slot.copied.synchronize();  // waits until the slot's previous range is copied
    const Matrix& m = range.matrix();
    quant::to_planes(m.block_type, range.n_rows, m.n_in, range.blocks(gathered_), slot.memory);
    const quant::PlaneLayout part = range.layout(), whole = quant::plane_layout(m.type, m.n_out, m.n_in);
    for (int j = 0; j < part.n_planes; ++j)
      queue_.copy_to_device(range.weight->to + whole.offset[j] + range.first_row * whole.row_bytes[j],
                            slot.memory + part.offset[j], range.n_rows * part.row_bytes[j]);
    queue_.record(slot.copied);
  }
  void finish() const { queue_.synchronize(); }

 private:
  struct Slot {
    gpu::Event copied;
    std::byte* memory;
  };

  gpu::Queue queue_;
  Slot slots_[kSlots];
  unsigned next_slot_ = 0;
  std::vector<std::byte> gathered_;
};

// Calls `progress` from the caller's thread, at most once per `step` bytes.
class Report {
 public:
  Report(const LoadProgress& progress, size_t total, size_t step) : progress_(progress), total_(total), step_(step) {}

  void operator()(size_t done) {
    if (!progress_ || (done < reported_ + step_ && done < total_)) return;
    reported_ = done;
    progress_(done, total_);
  }

 private:
  const LoadProgress& progress_;
  size_t total_, step_, reported_ = 0;
};

}  // namespace

void load_weights(const gpu::Device& device, std::vector<WeightCopy> weights, const LoadOptions& options,
                  const LoadProgress& progress) {
  // File order, so that a file outside the page cache is read sequentially.
  std::ranges::sort(weights, std::less<>{}, [](const WeightCopy& weight) { return weight.from.data; });
  const std::vector<Range> ranges = ranges_of(weights, options.slot_bytes);
  const int n_ranges = static_cast<int>(ranges.size());
  size_t slot_bytes = 0, total = 0;
  for (const Range& range : ranges) {
    slot_bytes = std::max(slot_bytes, range.layout().bytes);
    total += range.bytes();
  }

  const int n_threads = std::clamp(options.n_threads, 1, std::min(LoadOptions::kMaxThreads, std::max(n_ranges, 1)));
  const gpu::Buffer staging(device, n_threads * kSlots * slot_bytes, gpu::Buffer::Kind::kPinned);
  std::deque<Lane> lanes;
  for (int i = 0; i < n_threads; ++i) lanes.emplace_back(device, staging.data() + i * kSlots * slot_bytes, slot_bytes);

  const auto read_ahead = [&](int i) {
    if (i < n_ranges) MappedFile::read_ahead(ranges[i].in_file().data(), ranges[i].in_file().size());
  };
  const int ahead = kReadAheadRounds * n_threads;
  for (int i = 0; i < ahead; ++i) read_ahead(i);

  std::atomic<size_t> done = 0;
  std::atomic<bool> failed = false;
  Report report(progress, total, options.progress_bytes);
  ThreadPool pool(n_threads);
  pool.parallel_for(n_ranges, [&](int i, int thread) {
    if (failed) return;
    try {
      read_ahead(i + ahead);
      lanes[thread].load(ranges[i]);
      done += ranges[i].bytes();
      if (thread == 0 && done < total) report(done);
    } catch (...) {
      failed = true;
      throw;
    }
  });
  for (const Lane& lane : lanes) lane.finish();
  report(total);
}

namespace {

// Experts of a matrix: all of them in host memory, as planes, and the first ones in their slots.
struct ExpertCopy {
  std::byte *slots, *host;
  Matrix from;  // blocks in a mapped file

  int expert_rows() const { return from.n_out / from.n_experts; }
  void convert(int expert) const {
    quant::to_planes(from.block_type, from.n_out, from.n_in, from.data, host, expert * expert_rows(), expert_rows());
  }
  size_t bytes() const { return from.n_out * row_bytes(from.block_type, from.n_in); }
  void read_ahead() const { MappedFile::read_ahead(static_cast<const std::byte*>(from.data), bytes()); }
  void fill_slots(const gpu::Queue& queue) const {
    const quant::PlaneLayout all = quant::plane_layout(from.type, from.n_out, from.n_in);
    const int rows = from.rows_on_device();
    const quant::PlaneLayout held = quant::plane_layout(from.type, rows, from.n_in);
    for (int j = 0; j < all.n_planes; ++j)
      queue.copy_to_device(slots + held.offset[j], host + all.offset[j], rows * all.row_bytes[j]);
  }
};

// Allocates host memory for all experts, as the store's. Pinned, or, if the system pins less, pageable and staged.
void reserve_experts(Network& network, const gpu::Device& device, WeightStore& store) {
  std::vector<size_t> sizes;
  network.for_each_matrix([&](const Matrix& m) {
    if (m.expert_slots > 0) sizes.push_back(quant::checked_plane_layout(m.type, m.n_out, m.n_in).bytes);
  });
  const size_t total = std::accumulate(sizes.begin(), sizes.end(), size_t(0)), available = available_memory();
  LB_CHECK(total <= available, kMemory, "experts in host memory take ", total, " bytes, and ", available,
           " are available. Free memory, or use a smaller quantisation");
  try {
    for (size_t bytes : sizes) store.experts.emplace_back(device, bytes, gpu::Buffer::Kind::kPinned);
  } catch (const Error&) {
    store.experts.clear();
    for (size_t bytes : sizes) store.pageable_experts.push_back(std::make_unique<Arena>(bytes));
  }
  const int n_experts = network.expert_products().n;
  const size_t largest = network.largest_expert_bytes();
  gpu::ExpertRing ring = {.group_experts = gpu::ring_experts(largest, n_experts)};
  std::byte* at = store.expert_ring->data();
  for (std::byte*& part : ring.parts) part = std::exchange(at, at + ring.group_experts * largest);
  ring.tables = reinterpret_cast<int32_t*>(at);
  store.staged = std::make_shared<StagedExperts>(device, ring,
                                                 store.pageable_experts.empty() ? 0 : network.expert_slots() * largest);
  network.for_each_expert_layer([&](ExpertSlots& slots) {
    slots.staged = store.staged.get();
    slots.is_pinned = store.pageable_experts.empty();
  });
}

// `report` gets the bytes done.
void load_experts(const gpu::Device& device, const std::vector<ExpertCopy>& copies, int n_threads,
                  const std::function<void(size_t)>& report) {
  if (copies.empty()) return;
  const int n_experts = copies[0].from.n_experts;
  size_t done = 0;
  ThreadPool pool(n_threads);
  const gpu::Queue queue(device);
  for (const ExpertCopy& copy : copies) {
    copy.read_ahead();
    pool.parallel_for(n_experts, [&](int expert, int) { copy.convert(expert); });
    copy.fill_slots(queue);
    report(done += copy.bytes());
  }
  queue.synchronize();
}

// Pinned memory in which the device counts.
void count_experts(Network& network, const gpu::Device& device, WeightStore& store) {
  int n_layers = 0;
  network.for_each_expert_layer([&](ExpertSlots&) { ++n_layers; });
  const gpu::Buffer& buffer =
      store.experts.emplace_back(device, n_layers * sizeof(ExpertCounts), gpu::Buffer::Kind::kPinned);
  std::memset(buffer.data(), 0, buffer.size());
  auto* counts = reinterpret_cast<ExpertCounts*>(buffer.data());
  network.for_each_expert_layer([&](ExpertSlots& slots) { store.expert_counts.push_back(slots.counts = counts++); });
}

}  // namespace

size_t expert_ring_bytes(Network& network) {
  if (network.expert_slots() == 0) return 0;
  const int n_experts = network.expert_products().n;
  const size_t largest = network.largest_expert_bytes();
  const int in_part = gpu::ring_experts(largest, n_experts);
  Carver counter;
  counter.take<std::byte>(gpu::kRingParts * in_part * largest + gpu::ring_table_bytes(n_experts, in_part));
  return counter.used();
}

WeightStore load_weights(Network& network, const NetworkPart& part, GpuStream& stream, const LoadOptions& options,
                         const KeptWeights::Store* kept, const LoadProgress& progress) {
  const gpu::Device& device = stream.pack().device();
  WeightStore store;
  Carver counter, expert_counter;
  network.carve_planes(counter, expert_counter, part, {}, nullptr);
  store.memory = stream.reserve(counter.used());
  if (kept != nullptr) {  // the table of addresses and the vectors are then written again
    LB_ASSERT(kept->n_bytes() == store.memory->size() && expert_counter.used() == 0);
    std::byte* to = store.memory->data();
    for (const gpu::Buffer& slice : kept->slices) {
      stream.queue().copy_to_device(to, slice.data(), slice.size());
      to += slice.size();
    }
  }
  Carver carver(*store.memory), expert_carver;
  if (expert_counter.used() > 0) {
    store.expert_slots = stream.reserve(expert_counter.used());
    expert_carver = Carver(*store.expert_slots);
    store.expert_ring = stream.reserve(expert_ring_bytes(network));
    reserve_experts(network, device, store);
  }
  std::vector<WeightCopy> weights;
  std::vector<ExpertCopy> experts;
  size_t weight_bytes = 0, expert_bytes = 0;
  const auto copy = [&](std::byte* to, Matrix& from) {
    if (from.expert_slots == 0) {
      weights.push_back({to, from});
      weight_bytes += from.n_out * row_bytes(from.block_type, from.n_in);
      return;
    }
    const size_t i = experts.size();
    std::byte* const host = store.experts.empty() ? store.pageable_experts[i]->data() : store.experts[i].data();
    expert_bytes += experts.emplace_back(to, host, from).bytes();
    from.host_experts = host;
  };
  store.table = network.carve_planes(carver, expert_carver, part, copy, &stream);
  store.addresses = network.addresses(part);
  stream.queue().synchronize();  // zeroing is complete before the lanes' own queues copy
  const auto report = [&](size_t done) {
    if (progress) progress(done, weight_bytes + expert_bytes);
  };
  if (kept != nullptr) weights.clear();
  load_weights(device, std::move(weights), options, [&](size_t done, size_t) { report(done); });
  load_experts(device, experts, options.n_threads, [&](size_t done) { report(weight_bytes + done); });
  if (part.is_last()) network.release_copies();
  if (!experts.empty()) count_experts(network, device, store);
  return store;
}

}  // namespace lb
