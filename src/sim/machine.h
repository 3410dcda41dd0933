// Runs one launch. The threads of a block are fibers on one OS thread. 32 of them form a warp, whose collectives
// exchange values. Blocks run one after another, except that the blocks of a cluster or of a cooperative launch are
// co-resident.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <vector>

#include "device/sim_abi.h"
#include "fiber.h"
#include "shared_memory.h"

namespace lb::gpu::sim {

using Location = std::source_location;
inline constexpr int kWarpSize = 32;

// A dialect function that a thread has called, and the source location of the call.
struct CallSite {
  const char* word;
  Location where;
};

struct Warp {
  // Double-buffered by parity: lanes may still read the previous exchange.
  uint64_t values[2][kWarpSize];  // published by the lanes
  float a[2][512], b[2][256];     // operand buffers of a matrix product: A [16, 32] of bytes, else [16, 16] each
  std::vector<float> other[2];    // B of a warpgroup's product
  uint32_t published[2];          // mask of the lanes that have published
  uint64_t reduced[2];            // the combination of all values, where is_reduced
  bool is_reduced[2];
  int parity;
  int n_lanes, n_live, n_arrived;
  uint32_t epoch;  // counts collectives
  CallSite site;   // where the lanes that have arrived wait
  int first_lane;  // the first lane that arrived
};

enum class State : uint8_t { kReady, kSpins, kAtWarp, kAtBlock, kAtBlocks, kDone };

inline constexpr int kBulk = -1;  // the group of a bulk copy

struct Copy {
  void* to;
  const void* from;
  int bytes, group;
};

// A pending product of a warpgroup.
struct Product {
  std::function<void()> make;
  int group;
};

// The copies that complete a barrier's current phase. They execute as late as possible.
struct Transfers {
  const void* barrier;
  size_t expected;  // bytes announced
  std::vector<Copy> copies;
};

struct Block;
class Machine;

struct Thread {
  Thread(Machine& machine, const Stack& stack, Home& home) : machine(&machine), fiber(stack, home) {}
  Machine* machine;
  Fiber fiber;
  Block* block;
  Warp* warp;
  int id;
  State state;
  CallSite site;  // where the thread waits
  const uint32_t* spins_on;
  uint32_t spun_value;
  std::vector<Copy> copies;  // pending asynchronous copies
  int n_groups;              // committed groups of copies
  std::vector<Product> products;
  int n_product_groups;
};

struct Block {
  const lb_sim_launch* launch;
  uint32_t id[3];
  std::vector<Warp> warps;
  Thread* threads;  // [n_threads]
  SharedMemory shared;
  int n_live, n_arrived;
  int n_helpers;     // helper threads at the end of the block, which take no part in block_barrier()
  CallSite site;     // where the threads that have arrived at a barrier wait
  int first_thread;  // the first thread that arrived
  std::vector<Transfers> transfers;
};

// The GPU thread that runs on this OS thread.
[[gnu::tls_model("initial-exec")]] extern constinit thread_local Thread* current;

class Machine {
 public:
  // Returns an empty text on success, else the error message. Throws std::bad_alloc.
  const char* run(const lb_sim_launch& launch, void (*body)(const void*), const void* params);
  size_t static_shared_bytes() const { return static_shared_bytes_; }

  // Called by fibers.
  [[noreturn, gnu::format(printf, 2, 3)]] void fail(const char* format, ...);
  void wait_at(State state, CallSite site);
  void arrive_at_block(CallSite site, int n_awaited);
  void arrive_at_grid(uint32_t* counter, CallSite site);
  void arrive_at_cluster(CallSite site);
  void spin(const uint32_t* on, uint32_t value, CallSite site);
  uint64_t time_ns() { return time_ns_ += 200'000; }

 private:
  static void thread_main();
  void prepare();
  void start_block(int slot, int index);
  void arrive_at_blocks(CallSite site);
  void run_blocks(Block* blocks, int count);
  bool run_warp(Block& block, Warp& warp);
  Thread* next_ready(Thread& thread) const;
  void set_lane_order(const std::vector<int>& order);
  int layer(const Block& block) const;
  int n_peers() const;
  void report_deadlock(const Block* blocks, int count);
  void thread_ends();

  const lb_sim_launch* launch_ = nullptr;
  void (*body_)(const void*) = nullptr;
  const void* params_ = nullptr;
  int n_threads_ = 0, n_warps_ = 0, n_blocks_ = 0;
  int n_resident_ = 0;  // co-resident blocks: all blocks of a cooperative launch, or one cluster
  size_t static_shared_bytes_ = 0;

  Home home_;
  std::vector<Stack> stacks_;  // kept from launch to launch
  std::vector<Thread> threads_;
  std::vector<Block> blocks_;
  std::vector<int> warp_order_, block_order_, group_order_;  // empty: ascending
  int first_lane_ = 0, next_lane_[kWarpSize] = {};

  std::vector<int> n_blocks_arrived_;  // indexed by layer(): blocks that wait at a barrier of blocks
  uint64_t time_ns_ = 0;
  bool progressed_ = false, failed_ = false;
  char error_[1024];
};

// The machine that runs the current GPU thread.
inline Machine& machine() { return *current->machine; }
// The machine of this OS thread.
Machine& thread_machine();

// A warp's exchange: every lane publishes one value and reads all values. It fails unless all lanes of the warp call
// the same dialect function at the same call site.
struct Exchange {
  Warp* warp;
  int parity;
  uint32_t lanes() const { return warp->published[parity]; }  // mask of the lanes that exist
  uint64_t of(int lane, const CallSite& site) const {
    if (unsigned(lane) >= kWarpSize || !(lanes() >> lane & 1)) fail(lane, site);
    return warp->values[parity][lane];
  }

 private:
  [[noreturn, gnu::cold]] void fail(int lane, const CallSite& site) const;
};
Exchange exchange(uint64_t value, CallSite site);

// Records an access to shared memory. Fails if the access is outside the block's arrays or races with another thread.
void note_shared(const void* p, size_t bytes, Access access, const char* word);
inline Accessor accessor() { return {uint16_t(current->id), current->warp->epoch}; }
[[noreturn, gnu::cold]] void fail_alignment(const void* p, size_t bytes, const char* word);
[[noreturn, gnu::cold]] void fail_global(const char* word);
// Checks a pointer argument of a dialect function: its alignment, and note_shared() if it points to shared memory.
inline void check_access(const void* p, size_t bytes, Access access, const char* word) {
  if (uintptr_t(p) % bytes != 0) fail_alignment(p, bytes, word);
  const SharedMemory& shared = current->block->shared;
  if (!shared.contains(p)) return;
  if (access == Access::kRead && shared.is_read_by_others(p, bytes, accessor())) return;
  note_shared(p, bytes, access, word);
}
inline void check_global(const void* p, size_t bytes, const char* word) {
  if (uintptr_t(p) % bytes != 0) fail_alignment(p, bytes, word);
  if (current->block->shared.contains(p)) fail_global(word);
}

// Executes the asynchronous copies of all but the last n_pending committed groups.
void finish_copies(int n_pending);
// Executes the warpgroup products of all but the last n_pending committed groups.
void finish_products(int n_pending);

// The transfers of a barrier's current phase. find_transfers() returns null if there are none; transfers_of() adds an
// empty entry.
Transfers* find_transfers(const void* barrier);
Transfers& transfers_of(const void* barrier);
// Executes these copies once all announced bytes have been issued. Returns whether no copy is pending.
bool finish_transfers(const void* barrier);

}  // namespace lb::gpu::sim
