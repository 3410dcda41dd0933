// Loads weights onto a GPU. A range of rows is laid out like a separate matrix: a slot holds its planes at the offsets
// of plane_layout(). Each plane of the range is a contiguous slice of the whole matrix's plane.
#include "engine/gpu_load.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <numeric>
#include <utility>

#include "base/dtype.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "device/memory.h"
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

WeightStore load_weights(Network& network, const NetworkPart& part, GpuStream& stream, const LoadOptions& options,
                         const LoadProgress& progress) {
  Carver counter;
  network.carve_planes(counter, part, {}, nullptr);
  std::unique_ptr<Memory> memory = stream.reserve(counter.used());
  Carver carver(*memory);
  std::vector<WeightCopy> weights;
  const void* const* table = network.carve_planes(
      carver, part, [&](std::byte* to, const Matrix& from) { weights.push_back({to, from}); }, &stream);
  stream.queue().synchronize();  // zeroing is complete before the lanes' own queues copy
  load_weights(stream.pack().device(), std::move(weights), options, progress);
  if (part.is_last()) network.release_copies();
  return {std::move(memory), network.addresses(part), table};
}

}  // namespace lb
