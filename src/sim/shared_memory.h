// A block's shared memory: arrays filled with NaN bytes, with gaps between them. Every checked access is compared with
// the other threads' accesses to the same word since the last barrier.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace lb::gpu::sim {

// The declaration of a shared array in the source. There is one object per declaration; its address identifies the
// array.
struct SharedSite {
  const char* name;
  const char* file;
  int line;
  size_t bytes, alignment, element_bytes;
};

enum class Access : uint8_t { kRead, kWrite, kAtomic };

// The accessing thread. A warp's collectives order its threads; the warp's epoch counts its collectives.
struct Accessor {
  uint16_t thread;
  uint32_t warp_epoch;
};

class SharedMemory {
 public:
  static constexpr size_t kStaticLimit = 48 * 1024;  // bytes of declared arrays that every chip supports

  // Clears the memory for a new block. Throws std::bad_alloc.
  void begin(size_t dynamic_bytes);

  // Returns the array of a declaration; null when the arrays exceed kStaticLimit.
  void* array(const SharedSite& site);
  std::byte* dynamic() const { return dynamic_; }
  size_t dynamic_bytes() const { return dynamic_bytes_; }
  size_t static_bytes() const { return static_bytes_; }

  bool contains(const void* p) const { return uintptr_t(p) - uintptr_t(memory_.get()) < capacity_; }

  // An array. find() returns the array that contains an access, or null when no array contains it completely.
  struct Region {
    const std::byte* begin;
    size_t bytes;
    const SharedSite* site;  // null: dynamic shared memory
  };
  const Region* find(const void* p, size_t bytes) const;

  // An earlier conflicting access that no barrier separates from this one.
  struct Race {
    int thread;  // -1: no race
    bool is_write;
  };
  // Records an access inside an array.
  Race note(const void* p, size_t bytes, Access access, Accessor who);
  // Whether a read inside an aligned piece of 16 bytes needs no check and no record: threads of several warps, or of
  // this warp since its last collective, have read the whole piece, so another write before a barrier is a race
  // already.
  bool is_read_by_others(const void* p, size_t bytes, Accessor who) const {
    const size_t begin = size_t(static_cast<const std::byte*>(p) - memory_.get());
    const Piece& piece = pieces_[begin / kPiece];
    return piece.epoch == epoch_ && begin % kPiece + bytes <= kPiece &&
           (piece.warp == kSeveral || (piece.warp == who.thread / 32 && piece.warp_epoch == who.warp_epoch));
  }
  void passed_barrier() { ++epoch_; }

 private:
  // The last write and the last reads of 4 bytes, valid while their epoch is the current one.
  struct Word {
    uint32_t write_epoch, write_warp_epoch;
    uint32_t read_epoch, read_warp_epoch;
    uint16_t writer, reader;
    uint8_t write_bytes, read_bytes;  // masks
    uint8_t recent_bytes;             // mask of the bytes written since the warp's last collective
    uint8_t is_atomic : 1;
    uint8_t readers : 2;  // 1: one thread, 2: several threads of one warp, 3: threads of several warps
  };
  // Readers of all 16 bytes of a piece, once every word has several. Valid while its epoch is the current one.
  struct Piece {
    uint32_t epoch, warp_epoch;
    int warp;
  };
  static constexpr size_t kPiece = 16;
  static constexpr int kSeveral = -1;
  struct Free {
    void operator()(std::byte* p) const;
  };

  void note_readers(size_t begin, Accessor who);
  void add_region(const SharedSite* site, std::byte* p, size_t bytes);

  std::unique_ptr<std::byte[], Free> memory_;
  size_t capacity_ = 0;
  std::vector<Word> words_;
  std::vector<Piece> pieces_;
  std::vector<Region> regions_;
  std::byte* dynamic_ = nullptr;
  std::byte* next_ = nullptr;
  size_t dynamic_bytes_ = 0, static_bytes_ = 0;
  uint32_t epoch_ = 0;  // only increases, so words of earlier blocks are stale without being cleared
};

}  // namespace lb::gpu::sim
