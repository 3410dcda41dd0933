// Pointers to a block's shared arrays. Indexing checks the array's bounds; reads and writes check for races. They
// convert to plain pointers, which dialect functions and address sanitizer check.
#pragma once

#include <cstddef>
#include <type_traits>

namespace lb::gpu::sim {

template <class T>
class SharedPointer;

// The result of indexing: it converts to T and accepts assignments. Do not store it in an `auto` variable, because only
// a temporary converts.
template <class T>
class SharedElement {
 public:
  using Value = std::remove_const_t<T>;
  explicit SharedElement(T* p) : p_(p) {}
  SharedElement(const SharedElement&) = delete;

  operator Value() && { return get(); }
  void operator=(Value v) && { set(v); }
  void operator=(SharedElement&& other) && { set(other.get()); }
  void operator+=(Value v) && { set(get() + v); }
  void operator-=(Value v) && { set(get() - v); }
  void operator*=(Value v) && { set(get() * v); }
  T* operator&() && { return p_; }

 private:
  Value get() const {
    note_shared(p_, sizeof(T), Access::kRead, "read");
    return *p_;
  }
  void set(Value v) const {
    note_shared(p_, sizeof(T), Access::kWrite, "write");
    *p_ = v;
  }
  T* p_;
};

template <class T>
class SharedPointer {
 public:
  // An array of `count` elements at `begin`; the pointer points to element `offset`.
  SharedPointer(T* begin, ptrdiff_t count, const char* name, ptrdiff_t offset = 0)
      : begin_(begin), count_(count), offset_(offset), name_(name) {}

  template <class Index>
  SharedElement<T> operator[](Index i) const {
    const ptrdiff_t at = offset_ + static_cast<ptrdiff_t>(i);
    if (at < 0 || at >= count_) {
      machine().fail("index %td of the shared array %s, which has %td elements", at, name_, count_);
    }
    return SharedElement<T>(begin_ + at);
  }
  SharedElement<T> operator*() const { return (*this)[0]; }
  template <class Index>
  SharedPointer operator+(Index n) const {
    return {begin_, count_, name_, offset_ + static_cast<ptrdiff_t>(n)};
  }
  template <class Index>
  SharedPointer operator-(Index n) const {
    return {begin_, count_, name_, offset_ - static_cast<ptrdiff_t>(n)};
  }

  operator T*() const { return begin_ + offset_; }

 private:
  T* begin_;
  ptrdiff_t count_, offset_;
  const char* name_;
};

template <class T>
SharedPointer<T> shared_array(const SharedSite& site, ptrdiff_t count) {
  void* p = current->block->shared.array(site);
  if (!p) {
    machine().fail("shared array %s (%s:%d) of %zu bytes does not fit: %zu bytes of arrays at most", site.name,
                   site.file, site.line, site.bytes, SharedMemory::kStaticLimit);
  }
  return {static_cast<T*>(p), count, site.name};
}

}  // namespace lb::gpu::sim

namespace lb::gpu {

template <class T>
sim::SharedPointer<T> dynamic_shared() {
  const sim::SharedMemory& shared = sim::current->block->shared;
  return {reinterpret_cast<T*>(shared.dynamic()), static_cast<ptrdiff_t>(shared.dynamic_bytes() / sizeof(T)),
          "dynamic"};
}

}  // namespace lb::gpu
