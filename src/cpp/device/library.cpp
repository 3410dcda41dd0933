// Calls dlopen; the error message distinguishes a missing library from a broken one.
#include "device/library.h"

#include <dlfcn.h>

#include "base/error.h"

namespace lb::gpu {

Library Library::open(std::initializer_list<const char*> names, const char* product, const char* remedy) {
  std::string reasons;
  for (const char* name : names) {
    if (void* handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) return Library(handle, name);
    if (!reasons.empty()) reasons += "; ";
    reasons += ::dlerror();
  }
  fail(ErrorCode::kDevice, "cannot load the ", product, ": ", reasons, ". ", remedy);
}

void* Library::find(const char* symbol) const { return ::dlsym(handle_, symbol); }

}  // namespace lb::gpu
