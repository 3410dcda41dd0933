// Support for long calls from Python: they release the GIL, poll for signals and report progress.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <utility>

#include "base/error.h"
#include "engine/callbacks.h"

namespace lb {

// Polls for Python signals, and for a Python function that raises, at most every 50 ms. Called without the GIL.
class SignalPoll {
 public:
  SignalPoll() = default;
  // check: a function, or None; it must outlive this object.
  explicit SignalPoll(const nanobind::object& check) : check_(check.is_none() ? nullptr : check.ptr()) {}

  bool operator()() {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::milliseconds(50)) return false;
    last_ = now;
    nanobind::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) return true;
    if (check_ == nullptr) return false;
    PyObject* result = PyObject_CallNoArgs(check_);
    Py_XDECREF(result);
    return result == nullptr;
  }

 private:
  PyObject* check_ = nullptr;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// Runs work without the GIL. A Python error raised by a signal handler or a callback replaces kCancelled.
template <class Work>
auto without_gil(Work&& work) {
  try {
    nanobind::gil_scoped_release release;
    return work();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCancelled && PyErr_Occurred() != nullptr) throw nanobind::python_error();
    throw;
  }
}

// Polls for signals while weights are loaded, and calls a Python function unless it is None. Called without the GIL.
class LoadReport {
 public:
  explicit LoadReport(const nanobind::object& progress) : progress_(progress) {}
  void operator()(size_t done, size_t total) const {
    if (poll_()) fail(ErrorCode::kCancelled, "cancelled by the caller");
    if (progress_.is_none()) return;
    nanobind::gil_scoped_acquire gil;
    progress_(done, total);
  }

 private:
  const nanobind::object& progress_;
  mutable SignalPoll poll_;
};

// Wraps a Python function as Progress; None: an empty one. `callback` must outlive the result.
inline Progress progress_of(const nanobind::object& callback) {
  if (callback.is_none()) return {};
  return [&callback](int done, int total) {
    nanobind::gil_scoped_acquire gil;
    callback(done, total);
  };
}

}  // namespace lb
