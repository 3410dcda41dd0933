// GPU devices, and packs loaded on them, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "bindings/python_pack.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb {
namespace {

void bind_info(nb::module_& m) {
  using gpu::DeviceInfo;
  nb::class_<DeviceInfo>(m, "DeviceInfo", "Properties of a device, as its driver reports them.")
      .def_prop_ro("vendor", [](const DeviceInfo& i) { return std::string(gpu::name(i.vendor)); })
      .def_ro("index", &DeviceInfo::index)
      .def_ro("name", &DeviceInfo::name)
      .def_ro("architecture", &DeviceInfo::architecture)
      .def_ro("driver", &DeviceInfo::driver)
      .def_ro("driver_generation", &DeviceInfo::driver_generation,
              "The version that a pack's min_driver is compared with.")
      .def_ro("pci", &DeviceInfo::pci)
      .def_ro("uuid", &DeviceInfo::uuid)
      .def_ro("memory_bytes", &DeviceInfo::memory_bytes)
      .def_ro("n_sms", &DeviceInfo::n_sms)
      .def_ro("warp_size", &DeviceInfo::warp_size)
      .def_ro("max_threads_block", &DeviceInfo::max_threads_block)
      .def_ro("registers_sm", &DeviceInfo::registers_sm)
      .def_ro("shared_block_bytes", &DeviceInfo::shared_block_bytes)
      .def_ro("shared_sm_bytes", &DeviceInfo::shared_sm_bytes)
      .def_ro("l2_bytes", &DeviceInfo::l2_bytes)
      .def_ro("clock_khz", &DeviceInfo::clock_khz)
      .def_ro("memory_clock_khz", &DeviceInfo::memory_clock_khz)
      .def_ro("bus_bits", &DeviceInfo::bus_bits)
      .def_ro("is_integrated", &DeviceInfo::is_integrated)
      .def_ro("has_cooperative", &DeviceInfo::has_cooperative)
      .def_ro("has_clusters", &DeviceInfo::has_clusters)
      .def_ro("has_overlap", &DeviceInfo::has_overlap)
      .def_ro("has_graphs", &DeviceInfo::has_graphs);
  m.def(
      "devices", [](const std::string& vendor) { return gpu::devices(gpu::vendor_from_name(vendor)); }, "vendor"_a,
      "Lists the devices of cuda, hip or sim. Raises DeviceError if the driver is missing; it says what to install.");
  m.def(
      "driver_version",
      [](const std::string& vendor) {
        const gpu::Driver& driver = gpu::driver(gpu::vendor_from_name(vendor));
        return std::pair(driver.version, driver.generation);
      },
      "vendor"_a,
      "The version of a vendor's driver library (\"CUDA 13.0\"), and its generation (\"580\"), with or without "
      "devices.");
  m.def("require_driver", &gpu::require_driver, "info"_a, "min_driver"_a,
        "Raises DeviceError if the device's driver is older than a pack's min_driver.");
}

void bind_device(nb::module_& m) {
  nb::class_<gpu::Device>(m, "Device", "An opened device.")
      .def(
          "__init__",
          [](gpu::Device* self, const std::string& vendor, int index) {
            new (self) gpu::Device(gpu::vendor_from_name(vendor), index);
          },
          "vendor"_a, "index"_a = 0)
      .def_prop_ro("info", &gpu::Device::info)
      .def(
          "memory",
          [](const gpu::Device& device) {
            const gpu::MemoryInfo memory = device.memory();
            return std::pair(memory.free_bytes, memory.total_bytes);
          },
          "Free and total bytes.");

  nb::class_<PythonPack>(m, "Pack", "A kernel pack loaded on a device.")
      .def(nb::init<const gpu::Device&, const std::string&, const std::map<std::string, nb::bytes>&>(), "device"_a,
           "manifest_json"_a, "files"_a)
      .def_prop_ro("target", [](const PythonPack& pack) { return pack.target().name; })
      .def_prop_ro("name", &PythonPack::name, "Name of its device: cuda:0.")
      .def_prop_ro("device", [](const PythonPack& pack) { return pack.device().info(); });
}

}  // namespace

void bind_gpu(nb::module_& m) {
  bind_info(m);
  bind_device(m);
}

}  // namespace lb
