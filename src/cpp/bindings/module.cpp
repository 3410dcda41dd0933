// The extension module lucebox._engine: error translation and registration. Each part binds itself.
#include "bindings/bindings.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string_view>

#include "base/error.h"
#include "bindings/names.h"
#include "cpu/cpu_stream.h"
#include "quant/kv_type.h"

namespace nb = nanobind;

namespace {

const char* python_error(lb::ErrorCode code) {
  switch (code) {
    case lb::ErrorCode::kFormat: return "FormatError";
    case lb::ErrorCode::kUnsupported: return "UnsupportedError";
    case lb::ErrorCode::kInvalid: return "InvalidRequestError";
    case lb::ErrorCode::kMemory: return "OutOfMemoryError";
    case lb::ErrorCode::kIo: return "FormatError";
    case lb::ErrorCode::kDevice: return "DeviceError";
    case lb::ErrorCode::kCancelled: return "CancelledError";
    case lb::ErrorCode::kInternal: return "InternalError";
  }
  return "InternalError";
}

}  // namespace

NB_MODULE(_engine, m) {
  m.doc() = "The native engine of lucebox. Use the lucebox package; names here are not a public interface.";
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const lb::Error& error) {
      nb::object type = nb::module_::import_("lucebox.errors").attr(python_error(error.code()));
      // A message may quote a damaged file's bytes, which need not be UTF-8.
      const std::string_view text = error.what();
      const auto size = static_cast<Py_ssize_t>(text.size());
      const auto message = nb::steal<nb::object>(PyUnicode_DecodeUTF8(text.data(), size, "backslashreplace"));
      if (message.is_valid()) PyErr_SetObject(type.ptr(), message.ptr());
    }
  });
  m.def(
      "best_isa", [] { return std::string(lb::name(lb::best_isa())); },
      "The fastest instruction set that this machine supports.");
  m.def(
      "available_isas",
      [] {
        nb::list names;
        for (lb::Isa isa : {lb::Isa::kScalar, lb::Isa::kPortable, lb::Isa::kAvx2, lb::Isa::kAvx512})
          if (lb::is_available(isa)) names.append(std::string(lb::name(isa)));
        return names;
      },
      "Instruction sets for which this build has kernels and which this machine supports.");
  m.def(
      "kv_types",
      [] {
        nb::list names;
        for (const lb::KvTraits& traits : lb::kKvTraits) names.append(traits.name);
        return names;
      },
      "Types of stored keys and values, largest first.");
  m.def(
      "kv_slot_bytes",
      [](const std::string& kv, int head_dim) { return lb::kv_slot_bytes(lb::kv_type_named(kv), head_dim); },
      nb::arg("kv"), nb::arg("head_dim"), "Bytes of one head's key or value, stored as this type.");
  m.def(
      "allow_leaks", [] { nb::set_leak_warnings(false); },
      "Disables the report of objects that threads still hold at exit.");
  lb::bind_engine(m);
  lb::bind_memory_plan(m);
  lb::bind_sampler(m);
  lb::bind_session(m);
  lb::bind_prompt_scorer(m);
  lb::bind_format(m);
  nb::module_ gpu = m.def_submodule("gpu", "GPUs, through their vendors' drivers.");
  lb::bind_gpu(gpu);
  nb::module_ speculation = m.def_submodule("speculation", "Sources of drafts that sessions share.");
  lb::bind_speculation(speculation);
}
