// Runs one launch: the threads of a block are fibers on one OS thread, 32 of them are a warp whose collectives exchange
// values, and the blocks run one after another but for those of a cluster and, in a cooperative launch, all.
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

// The word a thread stands at, and where in the kernel.
struct Place {
  const char* word;
  Location where;
};

struct Warp {
  uint64_t values[2][kWarpSize];  // what lanes publish; two, for lanes that have not yet read the last exchange
  float a[2][256], b[2][256];     // operands of a matrix product, [16, 16] each
  std::vector<float> other[2];    // the other operand of a warpgroup's product
  uint32_t published[2];          // lanes
  int parity;
  int n_lanes, n_live, n_arrived;
  uint32_t epoch;  // collectives so far
  Place place;     // of the lanes that have arrived
  int first_lane;  // of them
};

enum class State : uint8_t { kReady, kSpins, kAtWarp, kAtBlock, kAtOthers, kDone };

inline constexpr int kBulk = -1;  // in place of a group

struct Copy {
  void* to;
  const void* from;
  int bytes, group;
};

// A product of a warpgroup that is not yet waited for.
struct Product {
  std::function<void()> make;
  int group;
};

// Copies that a phase of a barrier waits for: they happen when they have to.
struct Transfers {
  const void* barrier;
  size_t expected;  // bytes
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
  Place place;  // where it waits
  const uint32_t* spins_on;
  uint32_t spun_value;
  std::vector<Copy> copies;  // asynchronous ones on their way
  int n_groups;              // of copies, committed
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
  int n_helpers;  // its last threads, which block_barrier() does not wait for
  Place place;    // of the threads that have arrived at a barrier
  int first_thread;
  std::vector<Transfers> transfers;
};

// The thread that runs, on the OS thread that runs its launch.
[[gnu::tls_model("initial-exec")]] extern constinit thread_local Thread* current;

class Machine {
 public:
  // Empty when the kernel ran, else why it did not. Throws std::bad_alloc.
  const char* run(const lb_sim_launch& launch, void (*body)(const void*), const void* params);
  size_t static_shared_bytes() const { return static_shared_bytes_; }

  // The rest is called by fibers.
  [[noreturn, gnu::format(printf, 2, 3)]] void fail(const char* format, ...);
  void wait_at(State state, Place place);
  void arrive_at_block(Place place, int n_awaited);
  void arrive_at_grid(uint32_t* counter, Place place);
  void arrive_at_cluster(Place place);
  void spin(const uint32_t* on, uint32_t value, Place place);
  uint64_t time_ns() { return time_ns_ += 200'000; }

 private:
  static void thread_main();
  void prepare();
  void start_block(int slot, int index);
  void meet_blocks(Place place);
  void run_blocks(Block* blocks, int count);
  bool run_warp(Block& block, Warp& warp);
  void explain_stuck(const Block* blocks, int count);
  void thread_ends();

  const lb_sim_launch* launch_ = nullptr;
  void (*body_)(const void*) = nullptr;
  const void* params_ = nullptr;
  int n_threads_ = 0, n_warps_ = 0, n_blocks_ = 0;
  int n_alive_ = 0;  // blocks at once: all of a cooperative launch, or a cluster's
  size_t static_shared_bytes_ = 0;

  Home home_;
  std::vector<Stack> stacks_;  // kept from launch to launch
  std::vector<Thread> threads_;
  std::vector<Block> blocks_;
  std::vector<int> lane_order_, warp_order_, block_order_, group_order_;  // empty: ascending

  int n_met_ = 0;  // blocks of those alive at a barrier for all of them
  uint64_t time_ns_ = 0;
  bool progressed_ = false, failed_ = false;
  char error_[1024];
};

// That runs the current thread.
inline Machine& machine() { return *current->machine; }
// Of this OS thread.
Machine& own_machine();

// A warp's exchange: every lane gives one value and sees all of them. An error unless all lanes of the warp come, and
// to the same word at the same place.
struct Exchange {
  const uint64_t* values;
  uint32_t lanes;  // that exist
  uint64_t of(int lane, const Place& place) const;
};
Exchange exchange(uint64_t value, Place place);

// Of pointers to shared memory: an error outside of its arrays, or in a race with another thread.
void note_shared(const void* p, size_t bytes, Access access, const char* word);
// Any pointer a word takes: aligned, and checked as above when it is shared.
void check_access(const void* p, size_t bytes, Access access, const char* word);
void check_global(const void* p, size_t bytes, const char* word);

// Makes the asynchronous copies of all but the last n_pending committed groups.
void finish_copies(int n_pending);
// The same of the products of a warpgroup.
void finish_products(int n_pending);

// Of the present phase of a barrier; null where there are none.
Transfers* find_transfers(const void* barrier);
Transfers& transfers_of(const void* barrier);
// Makes those copies, once all that was announced is under way. Whether there is nothing left to wait for.
bool finish_transfers(const void* barrier);

}  // namespace lb::gpu::sim
