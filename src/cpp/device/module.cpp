// Loads code objects from memory and looks up their kernels.
#include "device/module.h"

#include "base/error.h"
#include "device/elf.h"

namespace lb::gpu {

Module::Module(const Device& device, std::span<const std::byte> image, std::string label) {
  LB_CHECK(elf_bytes(image.data(), image.size()) != 0, kFormat, label, " is no code object, or a truncated one (",
           image.size(), " bytes); install its pack again");
  const Context& context = *device.context();
  Handle handle = nullptr;
  const auto& load = context.driver().module_load;
  context.check(load.name, context.status_of(load, &handle, image.data()), label);
  resource_ =
      std::make_shared<const Loaded>(Resource(device.context(), handle, &Driver::module_unload), std::move(label));
}

Kernel Module::kernel(const std::string& name) const { return Kernel(resource_, name); }

Kernel::Kernel(std::shared_ptr<const Module::Loaded> module, std::string name)
    : module_(std::move(module)), name_(std::move(name)) {
  const Driver& d = context().driver();
  context().check(d.module_kernel.name,
                  context().status_of(d.module_kernel, &handle_, module_->module.handle(), name_.c_str()),
                  cat("kernel ", name_, " in ", module_->label));
  max_dynamic_shared_ = attribute(KernelAttribute::kMaxDynamicShared);
  set_carveout(kMaxCarveout);
  size_t offset = 0;
  if (d.kernel_parameter) context().status_of(d.kernel_parameter, handle_, 0, &offset, &params_bytes_);
}

int Kernel::attribute(KernelAttribute which) const {
  int value = 0;
  context().call(context().driver().kernel_attribute, &value, which, handle_);
  return value;
}

void Kernel::allow_shared(size_t bytes) {
  const size_t max_bytes = context().info().shared_block_bytes - static_shared_bytes();
  LB_CHECK(bytes <= max_bytes, kInvalid, "kernel ", name_, ": ", bytes, " bytes of dynamic shared memory requested, ",
           context().where(), " has ", max_bytes, " beside its static ", static_shared_bytes());
  if (bytes <= max_dynamic_shared_) return;
  if (const auto& set = context().driver().kernel_set_attribute)
    context().call(set, handle_, KernelAttribute::kMaxDynamicShared, int(bytes));
  max_dynamic_shared_ = bytes;
}

void Kernel::set_carveout(int shared_percent) {
  if (shared_percent == carveout_ || !context().info().has_overlap) return;
  context().call(context().driver().kernel_set_attribute, handle_, KernelAttribute::kSharedCarveout, shared_percent);
  carveout_ = shared_percent;
}

int Kernel::occupancy(int threads, size_t shared_bytes) const {
  int blocks = 0;
  context().call(context().driver().occupancy, &blocks, handle_, threads, shared_bytes);
  return blocks;
}

}  // namespace lb::gpu
