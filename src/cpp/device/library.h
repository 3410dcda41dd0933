// Opens a shared library by name, for the life of the process, and binds a driver table to its functions.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "device/driver.h"

namespace lb::gpu {

class Library {
 public:
  // Opens the first of `names` that loads. When none loads, the error names `product` and `remedy`.
  static Library open(std::initializer_list<const char*> names, const char* product, const char* remedy);

  const std::string& file() const { return file_; }
  void* find(const char* symbol) const;  // null when absent

 private:
  Library(void* handle, std::string file) : handle_(handle), file_(std::move(file)) {}

  void* handle_;
  std::string file_;
};

// Binds Calls to functions through the vendor's look-up and collects the names of missing required functions.
template <class Lookup>
class Binder {
 public:
  explicit Binder(Lookup lookup) : lookup_(std::move(lookup)) {}

  template <class... Args, class... How>
  void require(Call<Args...>& call, const char* name, How... how) {
    optional(call, name, how...);
    if (call) return;
    if (!missing_.empty()) missing_ += ", ";
    missing_ += name;
  }
  template <class... Args, class... How>
  void optional(Call<Args...>& call, const char* name, How... how) {
    call = {name, reinterpret_cast<Status (*)(Args...)>(lookup_(name, how...))};
  }
  const std::string& missing() const { return missing_; }

 private:
  Lookup lookup_;
  std::string missing_;
};

}  // namespace lb::gpu
