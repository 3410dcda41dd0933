// Each method makes one driver call. launch() first checks conditions that the driver reports only as an error number.
#include "device/queue.h"

#include "base/error.h"

namespace lb::gpu {
namespace {

constexpr unsigned kNonBlocking = 1;  // no implicit wait for the legacy default stream; same flag in CUDA and HIP

template <class... Options>
Resource create(const Device& device, Call<Handle*, Options...> Driver::* create_call, Resource::Release release,
                Options... options) {
  const Context& context = *device.context();
  Handle handle = nullptr;
  context.call(context.driver().*create_call, &handle, options...);
  return Resource(device.context(), handle, release);
}

unsigned stream_flags(const Device& device, Queue::Runner runner) {
  return runner == Queue::Runner::kOwnThread && device.info().vendor == Vendor::kSim ? kSimOwnThread : kNonBlocking;
}

void check_launch(const Queue& queue, const Kernel& kernel, const LaunchShape& shape, size_t params_bytes) {
  const DeviceInfo& info = kernel.context().info();
  LB_CHECK(queue.context().handle() == kernel.context().handle(), kInvalid, "kernel ", kernel.name(), " of ",
           kernel.context().where(), " cannot run on a queue of ", queue.context().where());
  LB_CHECK(kernel.params_bytes() == 0 || kernel.params_bytes() == params_bytes, kInternal, "kernel ", kernel.name(),
           " takes ", kernel.params_bytes(), " bytes of parameters, ", params_bytes,
           " were given: host and pack were not built from the same sources");
  LB_CHECK(shape.shared_bytes <= kernel.max_dynamic_shared_bytes(), kInvalid, "kernel ", kernel.name(), ": ",
           shape.shared_bytes, " bytes of dynamic shared memory requested, ", kernel.max_dynamic_shared_bytes(),
           " allowed; call allow_shared first (", kernel.context().where(), " has ", info.shared_block_bytes, ")");
  LB_CHECK(!shape.cooperative || info.has_cooperative, kUnsupported, "kernel ", kernel.name(),
           " needs a cooperative launch, which ", kernel.context().where(), " does not support");
  LB_CHECK(shape.cluster <= 1 || info.has_clusters, kUnsupported, "kernel ", kernel.name(), " needs clusters of ",
           shape.cluster, " blocks, which ", kernel.context().where(), " with ", info.driver, " cannot launch");
  LB_CHECK(!shape.overlap_previous || info.has_overlap, kUnsupported, "kernel ", kernel.name(),
           " is to overlap the previous kernel, which ", kernel.context().where(), " with ", info.driver,
           " does not support");
}

bool is_ready(const Context& context, const Call<Handle>& query, Handle handle) {
  const Status status = context.status_of(query, handle);
  if (status != kNotReady) context.check(query.name, status);
  return status != kNotReady;
}

std::string to_string(const LaunchShape& s) {
  return cat("grid ", s.grid[0], "x", s.grid[1], "x", s.grid[2], ", block ", s.block[0], "x", s.block[1], "x",
             s.block[2], ", shared ", s.shared_bytes, s.cooperative ? ", cooperative" : "");
}

}  // namespace

Event::Event(const Device& device) : resource_(create(device, &Driver::event_create, &Driver::event_destroy, 0u)) {}

void Event::synchronize() const { resource_.context().call(resource_.driver().event_synchronize, handle()); }

bool Event::is_done() const { return is_ready(resource_.context(), resource_.driver().event_query, handle()); }

float Event::elapsed_ms(const Event& later) const {
  float ms = 0;
  resource_.context().call(resource_.driver().event_elapsed, &ms, handle(), later.handle());
  return ms;
}

Queue::Queue(const Device& device, Runner runner, Priority priority)
    : resource_(create(device, &Driver::stream_create, &Driver::stream_destroy, stream_flags(device, runner),
                       priority == Priority::kUrgent ? -1 : 0)) {}

void Queue::copy_to_device(Address to, const void* from, size_t bytes) const {
  if (bytes > 0) context().call(resource_.driver().copy_to_device, to, from, bytes, handle());
}

void Queue::copy_to_host(void* to, Address from, size_t bytes) const {
  if (bytes > 0) context().call(resource_.driver().copy_to_host, to, from, bytes, handle());
}

void Queue::copy_on_device(Address to, Address from, size_t bytes) const {
  if (bytes > 0) context().call(resource_.driver().copy_on_device, to, from, bytes, handle());
}

void Queue::copy_peer(Address to, const Device& to_device, Address from, const Device& from_device,
                      size_t bytes) const {
  const Context &a = *to_device.context(), &b = *from_device.context();
  LB_CHECK(&a.driver() == &b.driver(), kUnsupported, "cannot copy from ", b.where(), " to ", a.where(),
           ": they belong to different drivers");
  if (bytes > 0) context().call(resource_.driver().peer_copy, to, a.handle(), from, b.handle(), bytes, handle());
}

void Queue::fill(Address to, unsigned char value, size_t bytes) const {
  if (bytes > 0) context().call(resource_.driver().fill, to, value, bytes, handle());
}

void Queue::launch(const Kernel& kernel, const LaunchShape& shape, const void* params, size_t params_bytes) const {
  check_launch(*this, kernel, shape, params_bytes);
  const Driver& d = resource_.driver();
  const auto &g = shape.grid, &b = shape.block;
  const unsigned shared = unsigned(shape.shared_bytes);
  void* values[] = {const_cast<void*>(params)};  // drivers copy the parameters before they return

  const auto check = [&](const char* call, Status status) {
    if (status != 0) context().check(call, status, cat("kernel ", kernel.name(), ", ", to_string(shape)));
  };
  if (shape.cluster > 1 || shape.overlap_previous) {
    LaunchAttribute attributes[3];
    uint32_t n = 0;
    if (shape.cluster > 1)
      attributes[n++] = {.id = LaunchAttribute::kCluster, .value = {.cluster = {shape.cluster, 1, 1}}};
    if (shape.overlap_previous) attributes[n++] = {.id = LaunchAttribute::kOverlapPrevious, .value = {.flag = 1}};
    if (shape.cooperative) attributes[n++] = {.id = LaunchAttribute::kCooperative, .value = {.flag = 1}};
    const LaunchConfig config = {{g[0], g[1], g[2]}, {b[0], b[1], b[2]}, shared, handle(), attributes, n};
    check(d.launch_with.name, context().status_of(d.launch_with, &config, kernel.handle(), values, nullptr));
  } else if (shape.cooperative) {
    check(d.launch_cooperative.name, context().status_of(d.launch_cooperative, kernel.handle(), g[0], g[1], g[2], b[0],
                                                         b[1], b[2], shared, handle(), values));
  } else {
    check(d.launch.name, context().status_of(d.launch, kernel.handle(), g[0], g[1], g[2], b[0], b[1], b[2], shared,
                                             handle(), values, nullptr));
  }
}

void Queue::run_on_host(void (*function)(void*), void* argument) const {
  context().call(resource_.driver().launch_host, handle(), function, argument);
}

void Queue::record(const Event& event) const {
  context().call(resource_.driver().event_record, event.handle(), handle());
}

void Queue::wait(const Event& event) const {
  context().call(resource_.driver().stream_wait, handle(), event.handle(), 0);
}

void Queue::synchronize() const { context().call(resource_.driver().stream_synchronize, handle()); }

bool Queue::is_done() const { return is_ready(context(), resource_.driver().stream_query, handle()); }

}  // namespace lb::gpu
