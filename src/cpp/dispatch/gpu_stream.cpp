// Copies go through pinned staging memory. Each op becomes one or more launches.
#include "dispatch/gpu_stream.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "dispatch/device_link.h"
#include "dispatch/staged_experts.h"
#include "dispatch/stream_group.h"

namespace lb {
namespace {

struct RecordedGraph final : Recording {
  explicit RecordedGraph(gpu::Graph graph) : graph(std::move(graph)) {}
  gpu::Graph graph;
};

class BufferMemory final : public Memory {
 public:
  explicit BufferMemory(gpu::Buffer buffer) : Memory(buffer.data(), buffer.size()), buffer_(std::move(buffer)) {}

 private:
  gpu::Buffer buffer_;
};

}  // namespace

GpuStream::GpuStream(std::shared_ptr<gpu::Pack> pack, size_t scratch_bytes, int capacity,
                     std::shared_ptr<LentMemory> lent, bool one_order, gpu::Queue::Runner runner)
    : Stream(kOpBodies<GpuStream>, "has no launch of its own"),
      pack_(std::move(pack)),
      queue_(pack_->device(), runner),
      capacity_(capacity),
      one_order_(one_order),
      lent_(std::move(lent)),
      scratch_(allocate(scratch_bytes)),
      arrived_(reserve(gpu::kSkinnyArrivedBytes)),
      staging_(pack_->device(), kStagingBytes, gpu::Buffer::Kind::kPinned),
      chain_(one_order),
      paces_{gpu::Event(pack_->device()), gpu::Event(pack_->device())} {}

size_t GpuStream::planned_bytes(size_t scratch_bytes) {
  Carver counter;
  counter.take<std::byte>(scratch_bytes);
  counter.take<std::byte>(gpu::kSkinnyArrivedBytes);
  return counter.used();
}

// Device memory with undefined contents; lent memory is zeroed.
std::unique_ptr<Memory> GpuStream::allocate(size_t bytes) {
  if (lent_ != nullptr) return lent_->take(bytes);
  return std::make_unique<BufferMemory>(gpu::Buffer(pack_->device(), std::max<size_t>(bytes, 1)));
}

std::unique_ptr<Memory> GpuStream::reserve(size_t bytes) {
  std::unique_ptr<Memory> memory = allocate(bytes);
  if (lent_ == nullptr) queue_.fill(memory->data(), 0, memory->size());
  return memory;
}

// Returns pinned memory that no copy in flight uses. Waits for the queue when the staging memory is full.
std::byte* GpuStream::stage(size_t bytes) {
  if (staged_ + bytes > kStagingBytes) {
    synchronize();
    staged_ = 0;
  }
  std::byte* slice = staging_.data() + staged_;
  staged_ += (bytes + 255) / 256 * 256;
  return slice;
}

void GpuStream::upload(void* to, const void* from, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const size_t part = std::min(bytes - done, kStagingBytes / 4);
    std::byte* staged = stage(part);
    std::memcpy(staged, static_cast<const std::byte*>(from) + done, part);
    queue().copy_to_device(static_cast<std::byte*>(to) + done, staged, part);
    done += part;
  }
}

void GpuStream::download(void* to, const void* from, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const size_t part = std::min(bytes - done, kStagingBytes);
    std::byte* staged = stage(part);
    queue().copy_to_host(staged, static_cast<std::byte*>(const_cast<void*>(from)) + done, part);
    synchronize();
    staged_ = 0;
    std::memcpy(static_cast<std::byte*>(to) + done, staged, part);
    done += part;
  }
}

void GpuStream::upload_async(void* to, const void* from, size_t bytes) {
  queue().copy_to_device(static_cast<std::byte*>(to), from, bytes);
}

void GpuStream::download_async(void* to, const void* from, size_t bytes) {
  queue().copy_to_host(to, static_cast<std::byte*>(const_cast<void*>(from)), bytes);
}

// Pinned memory, or pageable memory where the system pins no more.
std::unique_ptr<Memory> GpuStream::reserve_on_host(size_t bytes) {
  try {
    return std::make_unique<BufferMemory>(gpu::Buffer(pack_->device(), bytes, gpu::Buffer::Kind::kPinned));
  } catch (const Error&) {
    return std::make_unique<Arena>(bytes);
  }
}

void GpuStream::wait() { synchronize(); }

void GpuStream::synchronize() {
  flush();
  if (group_ == nullptr) return queue_.synchronize();
  group_->wait_until([&] { return queue_.is_done(); });
  group_->check();
}

void GpuStream::await(const gpu::Event& event) const {
  if (group_ == nullptr) return event.synchronize();
  group_->wait_until([&] { return event.is_done(); });
  group_->check();
}

unsigned GpuStream::n_paces_reached() const {
  return n_paces_ - unsigned(!paces_[0].is_done()) - unsigned(!paces_[1].is_done());
}

bool GpuStream::has_failed_device() const { return group_ != nullptr && group_->has_failed(); }

void GpuStream::check_devices() const {
  if (group_ != nullptr) group_->check();
}

void GpuStream::copy(void* to, const void* from, size_t bytes) {
  queue().copy_on_device(static_cast<std::byte*>(to), static_cast<std::byte*>(const_cast<void*>(from)), bytes);
}

void GpuStream::pace() {
  queue().record(paces_[n_paces_ % 2]);
  if (++n_paces_ < 2) return;
  await(paces_[n_paces_ % 2]);
}

void GpuStream::zero(void* to, size_t bytes) { queue().fill(static_cast<std::byte*>(to), 0, bytes); }

void GpuStream::replay(std::unique_ptr<Recording>& recording, const std::function<void()>& work) {
  if (!can_record()) return work();
  ++n_slot_changes_;
  if (recording == nullptr) {
    Recorder recorder(*this);
    work();
    recording = std::make_unique<RecordedGraph>(gpu::Graph(recorder.finish()));
  }
  static_cast<RecordedGraph&>(*recording).graph.launch(queue());
}

gpu::Resource GpuStream::Recorder::finish() {
  stream_.flush();
  return capture_.finish();
}

// Keeps the device busy filling the returned buffer while the host sends the launches to be timed. Otherwise the device
// would wait for launches, and the events would measure the host. The simulator runs every launch synchronously, so one
// byte is enough.
gpu::Buffer GpuStream::keep_busy() {
  // 8 GiB in all: 3 ms on an H100, about as long as the host takes to send 1000 launches with events.
  constexpr int kFills = 128;
  const bool is_sim = pack_->device().info().vendor == gpu::Vendor::kSim;
  gpu::Buffer buffer(pack_->device(), is_sim ? 1 : size_t(64) << 20);
  for (int i = 0; i < kFills; ++i) queue_.fill(buffer.data(), 0, buffer.size());
  return buffer;
}

std::vector<gpu::KernelTime> GpuStream::time_kernels(const std::function<void()>& work) {
  gpu::KernelTimer timer(pack_->device(), queue());
  const gpu::Buffer busy = keep_busy();
  timer_ = &timer;
  try {
    work();
    flush();
  } catch (...) {
    timer_ = nullptr;
    throw;
  }
  timer_ = nullptr;
  return timer.times();
}

bool GpuStream::has_one_order(const LinearGroup& group) const {
  return one_order_ && group.products[0].rows <= kOneOrderRows;
}

// With one order, matrices without a skinny kernel are multiplied row by row.
bool GpuStream::is_gemm(const LinearGroup& group) const {
  if (group.products[0].rows == 1) return false;
  const gpu::Target& target = pack_->target();
  return has_one_order(group) ? gpu::split_skinny(group, target).others.n == 0 : gpu::has_gemm(group, target);
}

int GpuStream::rounded_bits(const LinearGroup& group) const {
  return is_gemm(group) && !has_one_order(group) ? gpu::gemm_rounded_bits(group, pack_->target())
                                                 : gpu::rounded_bits(group);
}

RoundedRows GpuStream::x_buffer(const LinearGroup& group, int bits) const {
  if (bits == 0) return {};
  return rounded_rows(scratch_->data(), group.products[0].rows, group.products[0].n_in, bits == 16);
}

void GpuStream::run(const LinearGroup& group) {
  const Linear& first = group.products[0];
  const RoundedRows x = x_buffer(group, rounded_bits(group));
  if (x.high != nullptr) send(RoundRows{.x = first.x, .y = x, .rows = first.rows, .n_in = first.n_in});
  multiply(group, x);
}

template <class Op>
void GpuStream::send_rounded(Op op, const LinearGroup& readers) {
  LB_ASSERT(readers.products[0].x == op.y);
  op.rounded = x_buffer(readers, rounded_bits(readers));
  if (op.rounded.high == nullptr || !gpu::can_round(op)) {
    [[maybe_unused]] const bool reads_fp32 = op.rounded.high == nullptr;
    op.rounded = {};
    if constexpr (!std::is_same_v<Op, GeGlu>)  // which has no kernel that casts
      if (reads_fp32 && send_cast(op, readers)) return;
    run(op);
    run(readers);
    return;
  }
  send(op);
  multiply(readers, op.rounded);
}
template void GpuStream::send_rounded(RmsNorm, const LinearGroup&);
template void GpuStream::send_rounded(GatedRmsNorm, const LinearGroup&);
template void GpuStream::send_rounded(SwiGlu, const LinearGroup&);
template void GpuStream::send_rounded(GeGlu, const LinearGroup&);

// Casts the op's result to the x of the readers' GEMMs without storing it. Returns false, with no effect, if no kernel
// does.
template <class Op>
bool GpuStream::send_cast(const Op& op, const LinearGroup& readers) {
  if (!is_gemm(readers)) return false;
  const gpu::Target& target = pack_->target();
  gpu::GemmLaunches gemms =
      gpu::choose_gemm(readers, {}, scratch_->data(), reinterpret_cast<uint32_t*>(arrived_->data()), target);
  const auto cast = gpu::choose_cast(op, gemms, target);
  if (!cast) return false;
  start(cast->launch, cast->params);
  gemms.n_narrow = 0;
  send_gemms(gemms);
  return true;
}

void GpuStream::send_gemms(gpu::GemmLaunches gemms) {
  keeps_l1_ = gemms.n_skinny > 0;
  const bool can_gate = gpu::choose_gated(gemms, nullptr, pack_->target()).has_value();
  if (can_gate) {
    for (; gemms.n_narrow > 0; --gemms.n_narrow) {
      const gpu::NarrowLaunch& narrow = gemms.narrow[gemms.n_narrow - 1];
      start(narrow.launch, narrow.params);
    }
    gate_ = gemms;
    return;
  }
  gpu::for_each_launch(gemms, [&](const gpu::Launch& launch, const auto& params) { start(launch, params); });
}

// Returns false, with no effect, if the op gates other products.
bool GpuStream::fuse_gate(const SwiGlu& op, const LinearGroup& readers) {
  const LinearGroup& group = gate_->gemms[0].params.group;
  if (op.gate != group.products[0].y || op.up != group.products[1].y) return false;
  const gpu::GemmLaunch gated = *gpu::choose_gated(*gate_, op.y, pack_->target());
  gate_.reset();
  start(gated.tiles, gated.params);
  run(readers);
  return true;
}

// Launches or defers the products. x: the group's x rounded, if its weights need it.
void GpuStream::multiply(const LinearGroup& group, const RoundedRows& x) {
  flush();
  const gpu::Target& target = pack_->target();
  if (is_gemm(group)) {
    std::byte* scratch =
        scratch_->data() + gpu::gemm_scratch_at(group.products[0], gpu::gemm_rounded_bits(group, target));
    RoundedRows skinny_x = x;
    if (const auto narrow = gpu::choose_skinny_x(group, scratch_->data(), target)) {
      start(narrow->launch, narrow->params);
      skinny_x = x_buffer(group, 16);
    }
    if (chain_.begin(group, skinny_x, target)) return;
    return send_gemms(gpu::choose_gemm(group, x, scratch, reinterpret_cast<uint32_t*>(arrived_->data()), target));
  }
  if (has_one_order(group) && group.products[0].rows > 1)
    if (const gpu::SkinnyParts parts = gpu::split_skinny(group, target); parts.skinny.n > 0) {
      send_gemv(parts.others, x);
      return multiply(parts.skinny, x);
    }
  send_gemv(group, x);
}

void GpuStream::send_gemv(const LinearGroup& group, const RoundedRows& x) {
  keeps_l1_ = false;
  const gpu::GemvLaunches gemv = gpu::choose(group, x, pack_->target());
  for (int i = 0; i < gemv.n; ++i) start(gemv.launches[i].launch, gemv.launches[i].params);
}

// The x buffers of a chain of skinny GEMMs alternate between the start and the end of the scratch: one is read while
// the epilogue writes the other. The split-K partial sums are between the two buffers.
RoundedRows GpuStream::next_x_buffer(const LinearGroup& readers) const {
  const Linear& first = readers.products[0];
  std::byte* end = scratch_->data() + scratch_->size() / 256 * 256;
  const int bits = gpu::skinny_x_bits(first);
  return rounded_rows(chain_is_at_end_ ? scratch_->data() : end - gpu::gemm_scratch_at(first, bits), first.rows,
                      first.n_in, bits == 16);
}

void GpuStream::start_skinny(const gpu::SkinnyStep& step) {
  const bool makes_x = step.epilogue != gpu::Epilogue::kSums;
  Linear at_start = step.group.products[0];
  if (chain_is_at_end_) at_start.n_in = makes_x ? at_start.n_out : 0;
  keeps_l1_ = true;
  std::byte* partials = scratch_->data() + gpu::gemm_scratch_at(at_start, gpu::skinny_x_bits(at_start));
  const gpu::SkinnyLaunch skinny =
      gpu::skinny_launch(step, partials, reinterpret_cast<uint32_t*>(arrived_->data()), pack_->target());
  const int n_copies = std::exchange(n_copies_, 0);  // also where a launch throws
  start_now(skinny.launch, skinny.params);
  for (int i = 0; i < n_copies; ++i) start_now(gpu::choose(copies_[i], pack_->target()), copies_[i]);
  chain_is_at_end_ ^= makes_x;
}

void GpuStream::flush() {
  if (arrival_) std::exchange(arrival_, {})->send();
  for (const gpu::SkinnyStep& step : chain_.take()) start_skinny(step);
  if (gate_) {
    const gpu::GemmLaunches gemms = *std::exchange(gate_, {});
    gpu::for_each_launch(gemms, [&](const gpu::Launch& launch, const auto& params) { start_now(launch, params); });
  }
  chain_is_at_end_ = false;
}

// Returns false, with no effect, if the norm is no epilogue.
bool GpuStream::fuse_arrival(const RmsNorm& op, const LinearGroup& readers) {
  const Arrival arrival = *arrival_;
  GpuStream& sender = *arrival.sender;
  if (sender.chain_.is_empty() || op.x != arrival.rows.to) return false;
  if (arrival.rows.link->has_two_drivers()) return false;  // another chip's rounded x may have another layout
  const Linear& first = readers.products[0];
  const int bits = gpu::skinny_x_bits(first);
  const RoundedRows x = x_buffer(readers, bits), sent_x = sender.next_x_buffer(readers);
  gpu::DeferredGemm deferred(one_order_);
  if (!deferred.begin(op, readers, x, pack_->target())) return false;
  RmsNorm sent_op = op;
  sent_op.x = static_cast<const float*>(arrival.rows.from);
  sent_op.w = arrival.norm_w;
  const std::optional<gpu::SkinnyStep> step = sender.chain_.try_fuse(sent_op, readers, sent_x, sender.pack_->target());
  if (!step) return false;
  sender.start_skinny(*step);
  sender.chain_.take();  // the readers, which this stream runs
  sender.chain_is_at_end_ = false;
  arrival_.reset();
  arrival.send();
  arrival.rows.link->send(x.high, sent_x.high, rounded_bytes(first.rows, first.n_in, bits == 16));
  chain_ = deferred;
  return true;
}

void GpuStream::run(const RouteExperts& op) {
  std::optional<gpu::RouteFindLaunch> both = gpu::choose_route_find(op, pack_->target());
  if (!both) return send(op);
  if (op.slots.staged != nullptr) both->params.find.host_fills = op.slots.staged->fills();
  start(both->launch, both->params);
}

void GpuStream::run(const MixExperts& op) {
  LB_ASSERT(gpu::expert_scratch_bytes(op.rows, op.k, op.dim, op.ffn) <= scratch_->size());
  StagedExperts* const staged = op.slots.staged;
  if (staged != nullptr && !staged->is_pageable() && !is_capturing_)
    if (const auto streamed =
            gpu::choose_streamed(op, scratch_->data(), staged->ring(), staged->next_part(), pack_->target()))
      return run(*streamed, *staged);
  n_slot_changes_ += op.slots.n > 0;
  const auto run_one = [&](gpu::Launch launch, auto params) {
    if constexpr (std::is_same_v<decltype(params), gpu::FindExperts>)
      if (staged != nullptr) params.host_fills = staged->fills();
    if constexpr (std::is_same_v<decltype(params), gpu::FillSlots>)
      if (staged != nullptr && staged->is_pageable()) {
        params = staged->stage(params, op.slots.n, queue());
        launch.overlap_previous = false;  // the previous work is the host's
      }
    start(launch, params);
  };
  std::visit(
      [&](const auto& launches) {
        if (launches.round.rows > 0) send(launches.round);
        gpu::for_each_launch(launches, run_one);
      },
      gpu::choose(op, scratch_->data(), pack_->target()));
}

// The router's products leave the rounded x of the experts at the start of the scratch: they read plain weights, or
// round the same x to the same bits.
void GpuStream::run_mixture(const MixtureLayer& layer) {
  const std::optional<gpu::ExpertLaunches> mix = gpu::choose_fused(layer, scratch_->data(), pack_->target());
  if (!mix) return Stream::run_mixture(layer);
  RmsNorm in = layer.in;
  in.rounded = mix->round.y;
  send(in);
  run(layer.routers);
  run(layer.route);
  n_slot_changes_ += layer.mix.slots.n > 0;
  gpu::for_each_launch(*mix, [&](const gpu::Launch& launch, const auto& params) { start(launch, params); });
}

// The copies of a layer do not wait for its routes, so they run ahead of the products as far as the ring has room: into
// the next layers.
void GpuStream::run(const gpu::StreamedLaunches& launches, StagedExperts& staged) {
  staged.await_slots(queue(), n_slot_changes_);
  const gpu::GroupedLaunches& all = launches.products;
  if (all.round.rows > 0) send(all.round);
  if (all.cast) start(all.cast->launch, all.cast->params);
  start(launches.find, launches.find_params);
  for (int number = 0; number < launches.n_groups; ++number) {
    if (number > 0) {
      staged.begin_copy();
      pack_->run(launches.copy, launches.copy_of(number), staged.copies());
      staged.begin_products(queue_);
    }
    const gpu::GroupedLaunches group = launches.group(number);
    start(group.group, group.group_params);
    start(group.gate_up, group.gate_up_params);
    start(group.down, group.down_params);
    if (number > 0) staged.end_products(queue_);
  }
  start(all.sum, all.sum_params);
}

// Longer exchanges than the mailboxes hold go in parts, the same on every rank.
void GpuStream::run(const AllReduce& op) {
  for (long done = 0; done < op.count; done += op.ranks.max_values) {
    AllReduce part = op;
    part.x += done, part.y += done;
    if (part.add != nullptr) part.add += done;
    part.count = std::min(op.count - done, op.ranks.max_values);
    send(part);
  }
}

void GpuStream::run(const AllGather& op) {
  const int* widths = op.widths;
  const long widest = *std::max_element(widths, widths + op.ranks.n),
             total = std::accumulate(widths, widths + op.ranks.n, 0L);
  const int most = int(std::max(op.ranks.max_values / widest, 1L));
  for (int done = 0; done < op.rows; done += most) {
    AllGather part = op;
    part.x += long(done) * widths[op.ranks.rank], part.y += done * total;
    part.rows = std::min(op.rows - done, most);
    send(part);
  }
}

void GpuStream::run(const RopeTable& op) {
  send(op);
  table_is_new_ = true;
}

void GpuStream::run(const TopTokens& op) {
  LB_ASSERT(scratch_->size() >= gpu::top_tokens_scratch_bytes(op.rows));
  const gpu::TopTokensLaunches top = gpu::choose(op, scratch_->data(), pack_->target());
  for (const gpu::Launch& launch : top.launches) start(launch, top.params);
}

void GpuStream::run(const SelectCandidates& op) {
  LB_ASSERT(scratch_->size() >= gpu::select_scratch_bytes(op.rows, op.k));
  const gpu::SelectLaunches select = gpu::choose(op, reinterpret_cast<float*>(scratch_->data()), pack_->target());
  for (const gpu::Launch& launch : select.launches) start(launch, select.params);
}

void GpuStream::run(const DeltaInputs& op) {
  if (gpu::is_fused(op)) return send(op);
  run(op.conv);
  run(op.prepare);
}

void GpuStream::run(const GatedDelta& op) {
  const gpu::DeltaLaunches delta = gpu::choose(op, reinterpret_cast<float*>(scratch_->data()), pack_->target());
  for (int i = 0; i < delta.n; ++i) start(delta.launches[i], delta.params);
}

// For small appends the norm is split in two: the recurrence's epilogue applies weights and gate, and the products
// divide by each head's root mean square as they read.
void GpuStream::run_fused(const DeltaNet& op, const LinearGroup& readers) {
  run(op.inputs);
  if (op.delta.by_row) {
    run(op.delta);
    return run_fused(op.norm, readers);
  }
  flush();
  GatedRmsNorm norm = op.norm;
  norm.rounded = x_buffer(readers, 8);
  const std::optional<gpu::DeltaLaunches> delta = gpu::choose(op.delta, norm, pack_->target());
  if (delta && is_gemm(readers) && chain_.begin(norm, readers, norm.rounded, pack_->target()))
    return start_now(delta->launches[0], delta->params);
  run(op.delta);
  run_fused(op.norm, readers);
}

void GpuStream::run(const Sample& op, void* grid) {
  const gpu::SampleLaunches sample = gpu::choose(op, grid, pack_->target());
  start(sample.launch, sample.params);
}
void GpuStream::run(const WalkTree& op, void* grid) {
  const gpu::WalkLaunch walk = gpu::choose(op, grid, pack_->target());
  start(walk.launch, walk.params);
}

void GpuStream::run(std::span<const KvMove> moves) {
  for (int n = 0; !moves.empty(); moves = moves.subspan(n)) {
    const gpu::MoveLaunch move = gpu::choose(moves, pack_->target());
    start(move.launch, move.params);
    n = move.n;
  }
}

// Rows in one launch, each with its partials.
void GpuStream::run_by_row(const Attention& op) {
  const KvLayer& cache = op.cache;
  const size_t row =
      gpu::attention_row_scratch_bytes(op.n_heads, cache.n_kv_heads, cache.head_dim, capacity_, pack_->target());
  LB_ASSERT(gpu::kRowsOfLaunch * row <= scratch_->size());
  for (int first = 0; first < op.rows; first += gpu::kRowsOfLaunch) {
    const long heads = long(first) * op.n_heads;
    Attention part = op;
    part.rows = std::min(op.rows - first, gpu::kRowsOfLaunch);
    part.q += heads * key_dim_of(op.cache);
    part.o += heads * op.cache.head_dim;
    if (part.gate != nullptr) part.gate += first * op.gate_row_stride;
    part.tree = {op.tree.parent + first, op.tree.ancestors + first};
    const gpu::AttentionLaunches rows = gpu::choose_by_row(part, capacity_, scratch_->data(), pack_->target());
    for (int i = 0; i < rows.n; ++i) start(rows.launches[i], rows.params);
  }
}

void GpuStream::run(const Attention& op) {
  if (op.by_row && op.tree.parent != nullptr) return run_by_row(op);
  const gpu::AttentionLaunches attention = gpu::choose(op, capacity_, scratch_->data(), pack_->target());
  for (int i = 0; i < attention.n; ++i) start(attention.launches[i], attention.params);
}

template <class Op, class Choose>
void GpuStream::run_batched(std::span<const Op> ops, Choose&& choose) {
  for (size_t n = 0; !ops.empty(); ops = ops.subspan(n)) {
    n = std::min(ops.size(), size_t{gpu::kMaxBatched});
    auto first = choose(ops[0], 0);
    std::array<std::optional<gpu::Launch>, 2> launches;
    bool has_all = n > 1;
    for (int i = 0; i < first.n && has_all; ++i) {
      launches[i] = gpu::batched_launch(first.launches[i], int(n), pack_->target());
      has_all = launches[i].has_value();
    }
    if (!has_all) {
      run(ops[0]);
      n = 1;
      continue;
    }
    gpu::Batched<decltype(first.params)> params{{first.params}};
    for (size_t i = 1; i < n; ++i) params.of[i] = choose(ops[i], int(i)).params;
    for (int i = 0; i < first.n; ++i) start(*launches[i], params);
  }
}

namespace {

template <class Params>
struct OneLaunch {
  gpu::Launch launches[1];
  int n;
  Params params;
};

}  // namespace

// Ops that need no scratch.
template <class Op>
void GpuStream::run_several_plain(std::span<const Op> ops) {
  run_batched(ops, [&](const Op& op, int) { return OneLaunch<Op>{{gpu::choose(op, pack_->target())}, 1, op}; });
}

// Each sequence has separate partials.
void GpuStream::run(std::span<const Attention> ops) {
  const Attention& op = ops[0];
  const size_t row = gpu::aligned_scratch(
      gpu::attention_row_scratch_bytes(op.n_heads, op.cache.n_kv_heads, op.cache.head_dim, capacity_, pack_->target()));
  LB_ASSERT(gpu::kMaxBatched * row <= scratch_->size());
  run_batched(ops, [&](const Attention& one, int i) {
    return gpu::choose(one, capacity_, scratch_->data() + i * row, pack_->target());
  });
}

void GpuStream::run(std::span<const DeltaInputs> ops) {
  if (!gpu::is_fused(ops[0])) {
    for (const DeltaInputs& op : ops) run(op);
    return;
  }
  run_several_plain(ops);
}

void GpuStream::run(std::span<const GatedDelta> ops) {
  run_batched(ops, [&](const GatedDelta& op, int) {
    return OneLaunch<GatedDelta>{{gpu::choose(op, nullptr, pack_->target()).launches[0]}, 1, op};
  });
}

void GpuStream::run(std::span<const AttentionPrepare> ops) { run_several_plain(ops); }
void GpuStream::run(std::span<const CopyRows> ops) { run_several_plain(ops); }

void GpuStream::run(const CopyRows& op) {
  if (!chain_.makes(op.x) || n_copies_ == int(copies_.size())) return send(op);
  copies_[n_copies_++] = op;
}
void GpuStream::run(std::span<const NextToken> ops) { run_several_plain(ops); }

void GpuStream::run(std::span<const ScratchedSample> samples) {
  const int most = std::min<int>(static_cast<int>(samples.size()), gpu::kMaxBatched);
  run_batched(samples, [&](const ScratchedSample& one, int) {
    const gpu::SampleLaunches sample = gpu::choose(one.op, one.scratch, pack_->target(), most);
    return OneLaunch<SampleOnGrid>{{sample.launch}, 1, sample.params};
  });
}

void GpuStream::run(const KeyScores& op) {
  for (const gpu::Launch& launch : gpu::choose(op, pack_->target())) start(launch, op);
}

// The kernel that merges the splits also rounds o. The partials follow the rounded o in the scratch.
void GpuStream::run_fused(const Attention& op, const LinearGroup& readers) {
  LB_ASSERT(readers.products[0].x == op.o);
  if (op.by_row) {
    run(op);
    return run(readers);
  }
  const int bits = gpu::can_round(op) ? rounded_bits(readers) : 0;
  std::byte* scratch = scratch_->data() + gpu::gemm_scratch_at(readers.products[0], bits);
  gpu::AttentionLaunches attention = gpu::choose(op, capacity_, scratch, pack_->target());
  const bool is_rounded = bits > 0 && attention.n > 1;
  if (is_rounded) attention.params.rounded = x_buffer(readers, bits);
  for (int i = 0; i < attention.n; ++i) start(attention.launches[i], attention.params);
  is_rounded ? multiply(readers, attention.params.rounded) : run(readers);
}

}  // namespace lb
