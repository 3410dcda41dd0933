// One reservation of zeroed memory, carved once at load and never grown. Pages are touched by first use only,
// so a long context costs nothing until it is filled; the plan made at load still counts all of it.
#pragma once

#include <cstddef>
#include <utility>

#include "base/error.h"

namespace lb {

class Arena {
 public:
  explicit Arena(size_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  void release_pages();  // back to zeroes, physical memory returned

 private:
  std::byte* data_;
  size_t size_;
};

// Hands out consecutive 64-byte aligned pieces. Without an arena it only counts: the same carving code
// first measures what a plan needs and later places it, so plan and use cannot drift apart.
class Carver {
 public:
  Carver() = default;
  explicit Carver(const Arena& arena) : base_(arena.data()), capacity_(arena.size()) {}

  template <class T>
  T* take(size_t count) {
    const size_t start = used_;
    used_ += (count * sizeof(T) + 63) / 64 * 64;
    if (base_ == nullptr) return nullptr;
    LB_ASSERT(used_ <= capacity_);
    return reinterpret_cast<T*>(base_ + start);
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_ = nullptr;
  size_t capacity_ = 0;
  size_t used_ = 0;
};

}  // namespace lb
