// Memory reserved once at load and never grown, and the carver that hands out slices of a reservation.
#pragma once

#include <cstddef>

#include "base/error.h"

namespace lb {

// A reservation of host or device memory, zeroed on creation.
class Memory {
 public:
  Memory(std::byte* data, size_t size) : data_(data), size_(size) {}
  virtual ~Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_;
  size_t size_;
};

// Host memory. The system commits a page on first use, so a long context costs nothing until it is filled. The memory
// plan made at load still counts the whole arena.
class Arena final : public Memory {
 public:
  explicit Arena(size_t bytes);
  ~Arena() override;
  static size_t reserved_bytes();  // bytes reserved by all arenas of the process, committed or not
};

// Hands out consecutive slices, aligned for every vector load and tensor copy. A carver without memory only counts.
// The same carving code first counts what a plan needs and later carves real memory, so plan and use cannot differ.
class Carver {
 public:
  Carver() = default;
  explicit Carver(const Memory& memory) : base_(memory.data()), capacity_(memory.size()) {}
  explicit Carver(std::span<std::byte> memory) : base_(memory.data()), capacity_(memory.size()) {}

  // [count] or [rows, count] of T. Throws kMemory when the size overflows.
  template <class T>
  T* take(size_t count, size_t rows = 1) {
    const size_t start = used_;
    used_ = end_of_slice(used_, rows, count, sizeof(T));
    if (base_ == nullptr) return nullptr;
    LB_ASSERT(used_ <= capacity_);
    return reinterpret_cast<T*>(base_ + start);
  }
  size_t used() const { return used_; }

 private:
  static size_t end_of_slice(size_t start, size_t rows, size_t count, size_t bytes);

  std::byte* base_ = nullptr;
  size_t capacity_ = 0;
  size_t used_ = 0;
};

}  // namespace lb
