// Reservations of memory, made once at load and never grown, and the carver that cuts them into pieces.
#pragma once

#include <cstddef>

#include "base/error.h"

namespace lb {

// Of the host or of a device; zeroed when it is made.
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

// The host's. Pages are touched by first use only, so a long context costs nothing until it is filled; the plan made at
// load still counts all of it.
class Arena final : public Memory {
 public:
  explicit Arena(size_t bytes);
  ~Arena() override;
};

// Hands out consecutive pieces, aligned for every vector load and tensor copy. Without memory it only counts: the same
// carving code first measures what a plan needs and later places it, so plan and use cannot drift apart.
class Carver {
 public:
  Carver() = default;
  explicit Carver(const Memory& memory) : base_(memory.data()), capacity_(memory.size()) {}

  template <class T>
  T* take(size_t count) {
    constexpr size_t kAlignment = 256;
    const size_t start = used_;
    used_ += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
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
