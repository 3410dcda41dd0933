// A block's shared memory: arrays with gaps between them, filled with NaN bytes, every checked access compared with
// what other threads did to the same word since the last barrier.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace lb::gpu::sim {

// A declaration of a shared array in the source. One object per declaration, so its address is the array's identity.
struct SharedSite {
  const char* name;
  const char* file;
  int line;
  size_t bytes, alignment, element_bytes;
};

enum class Access : uint8_t { kRead, kWrite, kAtomic };

// Who accesses: threads of one warp are ordered by the warp's collectives, which its epoch counts.
struct Accessor {
  uint16_t thread;
  uint32_t warp_epoch;
};

class SharedMemory {
 public:
  static constexpr size_t kStaticLimit = 48 * 1024;  // what every chip grants to declared arrays

  // Empty, for a new block. Throws std::bad_alloc.
  void begin(size_t dynamic_bytes);

  // The array of a declaration; null when it exceeds kStaticLimit.
  void* array(const SharedSite& site);
  std::byte* dynamic() const { return dynamic_; }
  size_t dynamic_bytes() const { return dynamic_bytes_; }
  size_t static_bytes() const { return static_bytes_; }

  bool contains(const void* p) const { return uintptr_t(p) - uintptr_t(memory_.get()) < capacity_; }

  // Where an access falls: the array it is inside of; null when it crosses the end of one or hits none.
  struct Region {
    const std::byte* begin;
    size_t bytes;
    const SharedSite* site;  // null: the dynamic one
  };
  const Region* find(const void* p, size_t bytes) const;

  // An earlier access that no barrier separates from this one.
  struct Race {
    int thread;  // -1: there is none
    bool is_write;
  };
  // Notes an access inside an array.
  Race note(const void* p, size_t bytes, Access access, Accessor who);
  void passed_barrier() { ++epoch_; }

 private:
  // Of 4 bytes: the last write and the last reads, valid while their epoch is the present one.
  struct Word {
    uint32_t write_epoch, write_warp_epoch;
    uint32_t read_epoch, read_warp_epoch;
    uint16_t writer, reader;
    uint8_t write_bytes, read_bytes;  // masks
    uint8_t recent_bytes;             // of write_bytes, those since the warp's last barrier
    uint8_t is_atomic : 1;
    uint8_t readers : 2;  // 1: one thread, 2: several of one warp, 3: of several warps
  };
  struct Free {
    void operator()(std::byte* p) const;
  };

  void place(const SharedSite* site, std::byte* p, size_t bytes);

  std::unique_ptr<std::byte[], Free> memory_;
  size_t capacity_ = 0;
  std::vector<Word> words_;
  std::vector<Region> regions_;
  std::byte* dynamic_ = nullptr;
  std::byte* next_ = nullptr;
  size_t dynamic_bytes_ = 0, static_bytes_ = 0;
  uint32_t epoch_ = 0;  // never goes back, so that words of earlier blocks are stale by themselves
};

}  // namespace lb::gpu::sim
