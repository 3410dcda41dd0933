// OpFields: fills an op from keyword arguments, for the tests and the self-test. Numbers that follow from an array's
// shape may be omitted. An output that is given an input's name uses that input's memory. Arrays that share memory,
// such as q and k in one row, also share it in the op's memory. An input may be a link to what an earlier op wrote.
//
// Outputs hold 0xff bytes (NaN, or -1) before the op runs. Afterwards, all other bytes must be unchanged.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "ops/operands.h"

namespace lb::kernels {

namespace nb = nanobind;

using AnyArray = nb::ndarray<nb::ro, nb::device::cpu>;

// The memory that the ops of one stream read and write.
class OpMemory {
 public:
  virtual ~OpMemory() = default;
  virtual std::byte* reserve(size_t bytes) = 0;  // all bytes 0xff
  virtual void upload(std::byte* to, const void* from, size_t bytes) = 0;
  virtual void download(void* to, const std::byte* from, size_t bytes) = 0;
  // `type` becomes the type in which the memory holds the weights.
  virtual const void* weights(const AnyArray& blocks, DType& type, int n_out, int n_in) = 0;
  std::byte* random(size_t bytes, uint64_t seed);  // which memory compression cannot exploit
};

class OpFields {
 public:
  using Links = std::function<std::byte*(const nb::tuple&)>;  // the memory that a link names

  OpFields(OpMemory& memory, std::string op, const nb::dict& given, Links links);

  // The visitor of operands().
  void scalar(const char* name, int& value) {
    number(name, &value, [&value](long v) { value = int(v); });
  }
  void scalar(const char* name, bool& value) {  // optional
    if (const nb::object given = take(name); given.is_valid()) value = nb::cast<bool>(given);
  }
  void scalar(const char* name, float& value);
  void scalar(const char* name, DType& value);
  void scalar(const char* name, KvType& value);
  void scalar(const char* name, RopePairs& value);
  void scalar(const char* name, HeadOrder& value);
  void scalar(const char* name, Activations& value);
  template <class T>
  void stride(const char* name, T& value) {
    number(name, &value, [&value](long v) { value = T(v); }, true);
  }
  template <class T>
  void in(const char* name, T*& p, Axes shape, Axes strides = {}) {
    if (is_given(name) && nb::isinstance<nb::tuple>(given_[name]))
      p = reinterpret_cast<T*>(links_(nb::cast<nb::tuple>(take(name))));
    else
      add<T>(name, p, Access::kIn, shape, strides);
  }
  // An array with strides must be given, because the bytes between its rows must stay unchanged.
  template <class T>
  void out(const char* name, T*& p, Axes shape, Axes strides = {}) {
    add<T>(name, p, strides.size() > 0 ? Access::kInOut : Access::kOut, shape, strides);
  }
  template <class T>
  void in_out(const char* name, T*& p, Axes shape, Axes strides = {}) {
    add<T>(name, p, Access::kInOut, shape, strides);
  }
  template <class T>
  void optional_in(const char* name, T*& p, Axes shape, Axes strides = {}) {
    if (is_given(name)) add<T>(name, p, Access::kIn, shape, strides);
  }
  template <class T>
  void optional_in_out(const char* name, T*& p, Axes shape) {
    if (is_given(name)) add<T>(name, p, Access::kInOut, shape, {});
  }
  template <class T>
  void indices(const char* name, T*& p, Axes shape, long first, long end) {
    check_range<T>(name, add<T>(name, p, Access::kIn, shape, {}), first, end);
  }
  template <class T>
  void optional_indices(const char* name, T*& p, Axes shape, long first, long end) {
    if (is_given(name)) indices(name, p, shape, first, end);
  }
  void weights(const char* name, const void*& p, DType& type, int& n_out, const int& n_in);
  void pages(const char* name, void*& p, KvType type, const int& n_kv_heads, const int& head_dim, Access access);
  void page_table(const char* name, const int32_t*& p) { indices(name, p, {kAnySize}, 0, n_pages_); }
  void rounded(const char* name, RoundedRows& rows_out, int rows, int n_in);  // given as the number of bits, 8 or 16
  template <class T>
  void inside(T*& p, const char* name, long offset) {
    later_.push_back([this, &p, name, offset] {
      if (const Field* field = find(name)) p = reinterpret_cast<T*>(at(*field)) + offset;
    });
  }

  // Sets every pointer of the op to its memory. Refuses missing and unknown fields.
  void place();
  // Call after the op has run: checks that it wrote only its outputs, and returns the outputs by name.
  nb::dict results();

  long size(const char* name) { return field(name).shape[0]; }
  std::byte* address(const std::string& name) { return at(field(name)); }
  // The largest value of an int32 array; `none` if the array is empty or null.
  long largest(const char* name, long none);

 private:
  // Memory of arrays that overlap, or of one output.
  struct Region {
    const std::byte* host;  // the first byte of the arrays; null: an output
    size_t bytes;
    bool is_written;
    std::byte* data = nullptr;
  };
  struct Field {
    std::string name;
    Access access;
    nb::dlpack::dtype dtype;
    std::vector<long> shape, strides;
    const std::byte* host;  // of the given array; null: none given
    std::function<void(std::byte*)> set;
    int region = -1;
    size_t offset = 0;
    size_t item() const { return dtype.bits / 8; }
    size_t count() const;
    size_t span() const;  // bytes from the first value to the last
  };
  struct Missing {
    std::string name;
    std::function<void(long)> set;
    bool is_optional;
  };

  template <class T>
  Field& add(const char* name, T*& p, Access access, Axes shape, Axes strides) {
    return add(name, access, nb::dtype<std::remove_const_t<T>>(), shape, strides,
               [&p](std::byte* at) { p = reinterpret_cast<T*>(at); });
  }
  Field& add(const char* name, Access access, nb::dlpack::dtype dtype, Axes shape, Axes strides,
             std::function<void(std::byte*)> set);
  Field& add_out(const char* name, nb::dlpack::dtype dtype, std::vector<long> shape,
                 std::function<void(std::byte*)> set, const nb::object& in_place_of);
  void infer(const Axis& axis, long value);  // a number that was omitted
  template <class T>
  void check_range(const char* name, const Field& field, long first, long end) {
    const auto* values = reinterpret_cast<const T*>(field.host);
    for (long i = 0, n = field.shape[0]; i < n; ++i)
      LB_CHECK(values[i] >= first && values[i] < end, kInvalid, what_, name, " has ", long(values[i]),
               ", which is not in [", first, ", ", end, ")");
  }
  bool is_given(const char* name) const { return given_.contains(name); }
  nb::object take(const char* name);  // null: not given
  std::string word(const char* name, const char* choices);
  AnyArray array(const char* name, nb::handle value);
  void number(const char* name, const void* field, std::function<void(long)> set, bool is_optional = false);
  Field* find(const std::string& name);
  Field& field(const std::string& name);  // throws if unknown
  std::byte* at(const Field& field) const { return regions_[field.region].data + field.offset; }
  void reserve(Region& region);
  std::vector<std::byte> read(const Region& region, int index);

  OpMemory& memory_;
  std::string what_;  // "[rms_norm] "
  nb::dict given_;
  std::vector<std::string> names_;  // of all fields
  std::map<const void*, Missing> missing_;
  Links links_;
  std::deque<Field> fields_;
  std::deque<Region> regions_;
  std::vector<std::function<void()>> later_;
  std::deque<std::vector<std::byte>> owned_;  // one-element arrays given as a number
  std::vector<AnyArray> arrays_;              // keeps them alive
  long n_pages_ = 0;
};

}  // namespace lb::kernels
