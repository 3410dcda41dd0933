// Scheduler of fibers, barriers and collectives, and the checks of a launch.
#include "machine.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "sanitizer.h"

namespace lb::gpu::sim {
namespace {

constexpr size_t kStackBytes = kAddressSanitizer ? 512 * 1024 : 128 * 1024;
// A launch is deadlocked after this many rounds in which every ready thread re-reads an unchanged value.
constexpr int kSpinRounds = 10'000;

// A Fisher-Yates shuffle with splitmix64.
std::vector<int> permutation(int count, uint64_t& seed) {
  std::vector<int> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (int i = count - 1; i > 0; --i) {
    seed += 0x9e3779b97f4a7c15;
    uint64_t x = seed;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    std::swap(order[size_t(i)], order[(x ^ x >> 31) % uint64_t(i + 1)]);
  }
  return order;
}

// The index that runs i-th. An empty order is ascending.
int in_order(const std::vector<int>& order, int i) { return order.empty() ? i : order[size_t(i)]; }

bool same(const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; }

bool same(const CallSite& a, const CallSite& b) {
  if (std::memcmp(&a, &b, sizeof a) == 0) return true;  // almost always: equal pointers
  return a.where.line() == b.where.line() && a.where.column() == b.where.column() &&
         same(a.where.file_name(), b.where.file_name()) && same(a.word, b.word);
}

const char* file(const CallSite& site) { return site.where.file_name(); }
int line(const CallSite& site) { return int(site.where.line()); }

}  // namespace

constinit thread_local Thread* current = nullptr;

// The machine is on the heap, because static thread-local storage is small and a process may load several packs.
Machine& thread_machine() {
  thread_local const auto machine = std::make_unique<Machine>();
  return *machine;
}

// The lane that runs next in a thread's warp; null when none is ready.
[[gnu::always_inline]] inline Thread* Machine::next_ready(Thread& thread) const {
  const int own = thread.id % kWarpSize;
  for (int lane = next_lane_[own]; lane != own; lane = next_lane_[lane]) {
    if (lane < thread.warp->n_lanes && (&thread)[lane - own].state == State::kReady) return &thread + (lane - own);
  }
  return nullptr;
}

[[gnu::always_inline]] inline void Machine::wait_at(State state, CallSite site) {
  Thread& thread = *current;
  thread.state = state;
  thread.site = site;
  // Directly to the next lane: half the switches. The scheduler counts the lanes that spin.
  Thread* next = state == State::kSpins || kAddressSanitizer ? nullptr : next_ready(thread);
  if (!next) return thread.fiber.suspend();
  current = next;
  thread.fiber.switch_to(next->fiber);
}

const char* Machine::run(const lb_sim_launch& launch, void (*body)(const void*), const void* params) {
  launch_ = &launch;
  body_ = body;
  params_ = params;
  n_threads_ = int(launch.block[0]);
  n_blocks_ = int(launch.grid[0] * launch.grid[1] * launch.grid[2]);
  n_blocks_arrived_.assign(launch.grid[2], 0);
  static_shared_bytes_ = 0;
  error_[0] = 0;
  prepare();
  for (int i = 0; i < n_blocks_ / n_resident_ && !failed_; ++i) {
    for (int j = 0; j < n_resident_; ++j) start_block(j, in_order(group_order_, i) * n_resident_ + j);
    run_blocks(blocks_.data(), n_resident_);
  }
  current = nullptr;
  return error_;
}

void Machine::prepare() {
  const size_t stack_bytes = launch_->stack_bytes ? launch_->stack_bytes : kStackBytes;
  n_resident_ = launch_->cooperative ? n_blocks_ : std::max(1, int(launch_->cluster));
  const size_t needed = size_t(n_resident_) * size_t(n_threads_);
  threads_.clear();
  if (!stacks_.empty() && stacks_[0].bytes() < stack_bytes) stacks_.clear();
  stacks_.reserve(needed);
  if (failed_) {
    for (const Stack& stack : stacks_) stack.unpoison_frames();
  }
  failed_ = false;
  while (stacks_.size() < needed) stacks_.emplace_back(stack_bytes);
  threads_.reserve(needed);
  for (size_t i = 0; i < needed; ++i) threads_.emplace_back(*this, stacks_[i], home_);
  if (blocks_.size() < size_t(n_resident_)) blocks_.resize(size_t(n_resident_));

  n_warps_ = (n_threads_ + kWarpSize - 1) / kWarpSize;
  uint64_t seed = launch_->order_seed;
  set_lane_order(seed ? permutation(kWarpSize, seed) : std::vector<int>{});
  warp_order_ = seed ? permutation(n_warps_, seed) : std::vector<int>{};
  block_order_ = seed ? permutation(n_resident_, seed) : std::vector<int>{};
  group_order_ = seed ? permutation(n_blocks_ / n_resident_, seed) : std::vector<int>{};
}

void Machine::set_lane_order(const std::vector<int>& order) {
  for (int i = 0; i < kWarpSize; ++i) next_lane_[in_order(order, i)] = in_order(order, (i + 1) % kWarpSize);
  first_lane_ = in_order(order, 0);
}

void Machine::start_block(int slot, int index) {
  Block& block = blocks_[size_t(slot)];
  const uint32_t* grid = launch_->grid;
  block.launch = launch_;
  block.id[0] = uint32_t(index) % grid[0];
  block.id[1] = uint32_t(index) / grid[0] % grid[1];
  block.id[2] = uint32_t(index) / grid[0] / grid[1];
  block.threads = threads_.data() + size_t(slot) * size_t(n_threads_);
  block.n_live = n_threads_;
  block.n_arrived = block.n_helpers = 0;
  block.transfers.clear();
  block.shared.begin(launch_->dynamic_shared_bytes);
  block.warps.resize(size_t(n_warps_));
  for (size_t w = 0; w < block.warps.size(); ++w) {
    Warp& warp = block.warps[w];
    warp.n_lanes = warp.n_live = std::min(kWarpSize, n_threads_ - int(w) * kWarpSize);
    warp.n_arrived = warp.parity = 0;
    warp.epoch = 0;
    warp.published[0] = warp.published[1] = 0;
    warp.is_reduced[0] = warp.is_reduced[1] = false;
  }
  for (int i = 0; i < n_threads_; ++i) {
    Thread& thread = block.threads[i];
    thread.block = &block;
    thread.warp = &block.warps[size_t(i / kWarpSize)];
    thread.id = i;
    thread.state = State::kReady;
    thread.spins_on = nullptr;
    thread.copies.clear();
    thread.n_groups = 0;
    thread.products.clear();
    thread.n_product_groups = 0;
    thread.fiber.start(&Machine::thread_main);
  }
}

void Machine::thread_main() {
  machine().body_(machine().params_);
  machine().thread_ends();
}

void Machine::thread_ends() {
  Thread& thread = *current;
  Block& block = *thread.block;
  Warp& warp = *thread.warp;
  if (warp.n_arrived > 0) {
    fail("ends while lane %d of its warp waits at %s (%s:%d): all lanes must arrive", warp.first_lane, warp.site.word,
         file(warp.site), line(warp.site));
  }
  if (block.n_arrived > 0 && thread.id < n_threads_ - block.n_helpers) {
    fail("ends while thread %d waits at %s (%s:%d): all threads of the block must arrive", block.first_thread,
         block.site.word, file(block.site), line(block.site));
  }
  --warp.n_live;
  --block.n_live;
  static_shared_bytes_ = std::max(static_shared_bytes_, block.shared.static_bytes());
  progressed_ = true;
  thread.state = State::kDone;
}

// Runs the lanes of a warp until each lane waits, spins or has ended. Returns whether a lane spins.
bool Machine::run_warp(Block& block, Warp& warp) {
  int lane = first_lane_;
  while (lane >= warp.n_lanes) lane = next_lane_[lane];
  Thread& first = block.threads[(&warp - block.warps.data()) * kWarpSize + lane];
  bool spins = false;
  Thread* next = first.state == State::kReady ? &first : next_ready(first);
  for (; next && !failed_; next = next_ready(*current)) {
    current = next;
    next->fiber.resume();  // returns from the last lane that ran
    if (current->state == State::kSpins) spins = true;
  }
  return spins;
}

void Machine::run_blocks(Block* blocks, int count) {
  for (int idle = 0; idle < kSpinRounds && !failed_;) {
    bool spins = false, alive = false;
    progressed_ = false;
    for (int i = 0; i < count; ++i) {
      Block& block = blocks[count == 1 ? 0 : in_order(block_order_, i)];
      if (block.n_live == 0) continue;
      for (int w = 0; w < n_warps_; ++w) {
        if (run_warp(block, block.warps[size_t(in_order(warp_order_, w))])) spins = true;
        if (failed_) return;
      }
      alive = alive || block.n_live > 0;
    }
    if (!alive) return;
    if (!progressed_ && !spins) break;
    idle = progressed_ ? 0 : idle + 1;
    if (spins) {
      for (int i = 0; i < count; ++i) {
        for (int t = 0; t < n_threads_; ++t) {
          Thread& thread = blocks[i].threads[t];
          if (thread.state == State::kSpins) thread.state = State::kReady;
        }
      }
    }
  }
  if (!failed_) report_deadlock(blocks, count);
}

// No thread can run: reports what one of them waits for.
void Machine::report_deadlock(const Block* blocks, int count) {
  const auto find = [&](auto&& wanted) -> const Thread* {
    for (int i = 0; i < count; ++i) {
      for (int t = 0; t < n_threads_; ++t) {
        if (wanted(blocks[i].threads[t])) return &blocks[i].threads[t];
      }
    }
    return nullptr;
  };
  const auto in_state = [&](State state) { return find([&](const Thread& t) { return t.state == state; }); };
  const char* kernel = launch_->kernel;
  const auto write = [&](const Thread& t, const char* format, auto... values) {
    const int n = std::snprintf(error_, sizeof error_, "[%s] block (%u, %u, %u), warp %d, thread %d: %s (%s:%d) ",
                                kernel, t.block->id[0], t.block->id[1], t.block->id[2], t.id / kWarpSize, t.id,
                                t.site.word, file(t.site), line(t.site));
    if (n > 0 && size_t(n) < sizeof error_) std::snprintf(error_ + n, sizeof error_ - size_t(n), format, values...);
  };
  failed_ = true;
  if (const Thread* t = in_state(State::kAtWarp)) {
    const Thread* other = find(
        [&](const Thread& o) { return o.warp == t->warp && o.state != State::kAtWarp && o.state != State::kDone; });
    if (other) {
      return write(*t, "waits for lane %d, which waits at %s (%s:%d): all lanes of a warp must reach a collective",
                   other->id % kWarpSize, other->site.word, file(other->site), line(other->site));
    }
  }
  if (const Thread* t = in_state(State::kAtBlocks)) {
    const auto ended = std::count_if(blocks, blocks + count, [](const Block& b) { return b.n_live == 0; });
    return write(*t, "waits forever: %d of %d blocks arrived and %d have ended", n_blocks_arrived_[layer(*t->block)],
                 n_peers(), int(ended));
  }
  if (const Thread* t = in_state(State::kAtBlock)) {
    const Thread* other = find(
        [&](const Thread& o) { return o.block == t->block && o.state != State::kAtBlock && o.state != State::kDone; });
    if (other) {
      return write(*t, "waits for thread %d, which waits at %s (%s:%d): all threads of a block must reach a barrier",
                   other->id, other->site.word, file(other->site), line(other->site));
    }
  }
  if (const Thread* t = find([](const Thread& o) { return o.spins_on != nullptr && o.state != State::kDone; })) {
    return write(*t, "reads %u forever: no thread that could write another value can run%s", t->spun_value,
                 launch_->cooperative ? "" : " (only a cooperative launch has all blocks co-resident)");
  }
  std::snprintf(error_, sizeof error_, "[%s] no thread can run", kernel);
}

void Machine::fail(const char* format, ...) {
  const Thread& t = *current;
  const int n = std::snprintf(error_, sizeof error_, "[%s] block (%u, %u, %u), warp %d, thread %d: ", launch_->kernel,
                              t.block->id[0], t.block->id[1], t.block->id[2], t.id / kWarpSize, t.id);
  va_list arguments;
  va_start(arguments, format);
  if (n > 0 && size_t(n) < sizeof error_) std::vsnprintf(error_ + n, sizeof error_ - size_t(n), format, arguments);
  va_end(arguments);
  failed_ = true;
  current->fiber.abandon();
}

void Machine::arrive_at_block(CallSite site, int n_awaited) {
  Block& block = *current->block;
  if (current->id >= n_awaited) {
    fail("reaches %s (%s:%d), but is a helper thread: block_barrier is for the first %d threads", site.word, file(site),
         line(site), n_awaited);
  }
  progressed_ = true;
  if (block.n_live < n_awaited) {
    fail("waits at %s (%s:%d), but %d threads of the block have ended: all must arrive", site.word, file(site),
         line(site), n_awaited - block.n_live);
  }
  if (block.n_arrived == 0) {
    block.site = site;
    block.first_thread = current->id;
  } else if (!same(block.site, site)) {
    fail("waits at %s (%s:%d), but thread %d waits at %s (%s:%d): all threads of a block must reach the same barrier",
         site.word, file(site), line(site), block.first_thread, block.site.word, file(block.site), line(block.site));
  }
  if (++block.n_arrived < n_awaited) return wait_at(State::kAtBlock, site);
  block.n_arrived = 0;
  block.shared.passed_barrier();
  for (int i = 0; i < n_threads_; ++i)
    if (block.threads[i].state == State::kAtBlock) block.threads[i].state = State::kReady;
}

void Machine::arrive_at_grid(uint32_t* counter, CallSite site) {
  if (!launch_->cooperative) {
    fail("%s (%s:%d) in an ordinary launch: only a cooperative launch has all blocks co-resident", site.word,
         file(site), line(site));
  }
  arrive_at_block(site, n_threads_ - current->block->n_helpers);
  if (current->id == 0) {
    const Block& block = *current->block;
    const bool is_first = block.id[0] == 0 && block.id[1] == 0;
    const uint32_t step = is_first ? 0x80000000u - uint32_t(n_peers() - 1) : 1u;
    const uint32_t before = __atomic_fetch_add(counter, step, __ATOMIC_ACQ_REL);
    arrive_at_blocks(site);
    if (((__atomic_load_n(counter, __ATOMIC_ACQUIRE) ^ before) & 0x80000000u) == 0) {
      fail("%s (%s:%d): the counter was %#x and did not flip: zero it once, before its first use", site.word,
           file(site), line(site), before);
    }
  }
  arrive_at_block(site, n_threads_ - current->block->n_helpers);
}

// Blocks of a cooperative launch synchronise with the blocks of the same z coordinate; a cluster is one layer.
int Machine::layer(const Block& block) const { return launch_->cooperative ? int(block.id[2]) : 0; }
int Machine::n_peers() const { return launch_->cooperative ? n_blocks_ / int(launch_->grid[2]) : n_resident_; }

// A barrier at which one thread of each co-resident block of a layer arrives.
void Machine::arrive_at_blocks(CallSite site) {
  const int at = layer(*current->block);
  if (++n_blocks_arrived_[at] < n_peers()) return wait_at(State::kAtBlocks, site);
  n_blocks_arrived_[at] = 0;
  for (Thread& thread : threads_) {
    if (thread.state == State::kAtBlocks && layer(*thread.block) == at) thread.state = State::kReady;
  }
}

void Machine::arrive_at_cluster(CallSite site) {
  const int n_awaited = n_threads_ - current->block->n_helpers;
  arrive_at_block(site, n_awaited);
  if (current->id == 0 && launch_->cluster > 1) arrive_at_blocks(site);
  arrive_at_block(site, n_awaited);
}

void Machine::spin(const uint32_t* on, uint32_t value, CallSite site) {
  Thread& thread = *current;
  if (thread.spins_on != on || thread.spun_value != value) progressed_ = true;
  thread.spins_on = on;
  thread.spun_value = value;
  wait_at(State::kSpins, site);
}

Exchange exchange(uint64_t value, CallSite site) {
  Thread& thread = *current;
  Warp& warp = *thread.warp;
  const int lane = thread.id % kWarpSize;
  if (warp.n_live < warp.n_lanes) {
    machine().fail("reaches %s (%s:%d), but %d lanes of its warp have ended: all must arrive", site.word, file(site),
                   line(site), warp.n_lanes - warp.n_live);
  }
  if (warp.n_arrived == 0) {
    warp.site = site;
    warp.first_lane = lane;
  } else if (!same(warp.site, site)) {
    machine().fail("reaches %s (%s:%d), but lane %d of its warp waits at %s (%s:%d): all lanes must reach the same",
                   site.word, file(site), line(site), warp.first_lane, warp.site.word, file(warp.site),
                   line(warp.site));
  }
  const int parity = warp.parity;
  warp.values[parity][lane] = value;
  warp.published[parity] |= 1u << lane;
  if (++warp.n_arrived < warp.n_lanes) {
    machine().wait_at(State::kAtWarp, site);
  } else {
    warp.n_arrived = 0;
    warp.parity ^= 1;
    warp.published[warp.parity] = 0;
    warp.is_reduced[warp.parity] = false;
    ++warp.epoch;
    Thread* lanes = &thread - lane;
    for (int i = 0; i < warp.n_lanes; ++i) lanes[i].state = State::kReady;
  }
  return {&warp, parity};
}

void Exchange::fail(int lane, const CallSite& site) const {
  machine().fail("%s (%s:%d) reads lane %d, which does not exist: the warp has %d lanes", site.word, file(site),
                 line(site), lane, __builtin_popcount(lanes()));
}

void note_shared(const void* p, size_t bytes, Access access, const char* word) {
  SharedMemory& shared = current->block->shared;
  const SharedMemory::Region* region = shared.find(p, bytes);
  if (!region) machine().fail("%s of %zu bytes at %p is outside of the block's shared arrays", word, bytes, p);
  const SharedMemory::Race race = shared.note(p, bytes, access, accessor());
  if (race.thread < 0) return;
  const size_t offset = size_t(static_cast<const std::byte*>(p) - region->begin);
  const char* does = access == Access::kRead ? "reads" : "writes";
  const char* did = race.is_write ? "wrote" : "read";
  if (!region->site) {
    machine().fail("race: %s byte %zu of the dynamic shared memory, which thread %d %s with no barrier between", does,
                   offset, race.thread, did);
  }
  machine().fail("race: %s %s[%zu] (%s:%d), which thread %d %s with no barrier between", does, region->site->name,
                 offset / region->site->element_bytes, region->site->file, region->site->line, race.thread, did);
}

void fail_alignment(const void* p, size_t bytes, const char* word) {
  machine().fail("%s of %zu bytes at %p: not aligned", word, bytes, p);
}
void fail_global(const char* word) { machine().fail("%s takes global memory, got a shared pointer", word); }

void finish_copies(int n_pending) {
  std::vector<Copy>& copies = current->copies;
  const auto pending = std::find_if(copies.begin(), copies.end(),
                                    [&](const Copy& copy) { return copy.group >= current->n_groups - n_pending; });
  for (auto copy = copies.begin(); copy != pending; ++copy) {
    note_shared(copy->to, size_t(copy->bytes), Access::kWrite, "copy_async");
    std::memcpy(copy->to, copy->from, size_t(copy->bytes));
  }
  copies.erase(copies.begin(), pending);
}

void finish_products(int n_pending) {
  std::vector<Product>& products = current->products;
  const auto pending = std::find_if(products.begin(), products.end(), [&](const Product& product) {
    return product.group >= current->n_product_groups - n_pending;
  });
  for (auto product = products.begin(); product != pending; ++product) product->make();
  products.erase(products.begin(), pending);
}

Transfers* find_transfers(const void* barrier) {
  std::vector<Transfers>& all = current->block->transfers;
  const auto found = std::ranges::find(all, barrier, &Transfers::barrier);
  return found == all.end() ? nullptr : &*found;
}

Transfers& transfers_of(const void* barrier) {
  if (Transfers* found = find_transfers(barrier)) return *found;
  return current->block->transfers.emplace_back(Transfers{barrier, 0, {}});
}

bool finish_transfers(const void* barrier) {
  Transfers* transfers = find_transfers(barrier);
  if (!transfers) return true;
  size_t copied = 0;
  for (const Copy& copy : transfers->copies) copied += size_t(copy.bytes);
  if (copied > transfers->expected)
    machine().fail("bulk copies have %zu bytes, but barrier_expect announced %zu", copied, transfers->expected);
  if (copied < transfers->expected) return false;
  for (const Copy& copy : transfers->copies) {
    // copy_async has recorded its own write
    if (copy.group == kBulk) note_shared(copy.to, size_t(copy.bytes), Access::kWrite, "copy_bulk");
    std::memcpy(copy.to, copy.from, size_t(copy.bytes));
  }
  std::vector<Transfers>& all = current->block->transfers;
  all.erase(all.begin() + (transfers - all.data()));
  return true;
}

}  // namespace lb::gpu::sim
