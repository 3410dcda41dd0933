#include "dispatch/device_link.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "base/error.h"

namespace lb {
namespace {

constexpr int kRounds = 50;                       // per size of known answers, and of a timed copy
constexpr size_t kProvenBytes = size_t(1) << 20;  // largest known answer

std::atomic<uint64_t> n_copies = 0;  // of all links

}  // namespace

// Some drivers refuse peer access between some devices.
std::string enable_peer(const gpu::Device& device, const gpu::Device& peer) {
  const gpu::Context& context = *device.context();
  if (&context.driver() != &peer.context()->driver())
    return cat(context.where(), " and ", peer.context()->where(), " have different drivers");
  int is_possible = 0;
  const auto& query = context.driver().peer_possible;
  if (query) context.call(query, &is_possible, device.info().index, peer.info().index);
  if (is_possible == 0) return cat(context.where(), " has no peer access to ", peer.context()->where());
  try {
    device.enable_peer(peer);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void check_may_use_host(LinkPath wanted, const std::string& why) {
  LB_CHECK(wanted != LinkPath::kPeer, kUnsupported, "link = peer: ", why, ". Use link = auto or host");
}

DeviceLink::DeviceLink(GpuStream& from, GpuStream& to, size_t max_bytes, LinkPath wanted)
    : from_(&from),
      to_(&to),
      max_bytes_(max_bytes),
      has_two_drivers_(&from.pack().device().context()->driver() != &to.pack().device().context()->driver()),
      why_(wanted == LinkPath::kHost ? "link = host" : enable_peer(to.pack().device(), from.pack().device())) {
  if (why_.empty()) {
    use(LinkPath::kPeer);
    if (answers()) return;
    why_ = cat(from.pack().device().context()->where(), " copies wrong data to its peer");
  }
  check_may_use_host(wanted, why_);
  use(LinkPath::kHost);
  LB_CHECK(answers(), kDevice, "rows sent from ", from.pack().device().context()->where(), " to ",
           to.pack().device().context()->where(),
           " through pinned host memory arrive wrong. Check the driver's log, or use one device");
}

void DeviceLink::use(LinkPath path) {
  path_ = path;
  slots_.clear();
  const gpu::Device &sender = from_->pack().device(), &receiver = to_->pack().device();
  const bool is_peer = path == LinkPath::kPeer;
  const auto kind = is_peer ? gpu::Buffer::Kind::kDevice : gpu::Buffer::Kind::kPinned;
  const gpu::Device& owner = is_peer ? sender : receiver;  // host memory is near the device that reads it
  for (int i = 0; i < kBuffers; ++i)
    slots_.push_back({gpu::Buffer(owner, has_two_drivers_ ? 0 : max_bytes_, kind),
                      has_two_drivers_
                          ? std::make_unique<gpu::SharedPages>(std::initializer_list{&sender, &receiver}, max_bytes_)
                          : nullptr});
  copies_.clear();
  for (int i = 0; i < kCopies; ++i) copies_.emplace_back(sender, receiver);
}

// Sends known patterns, different in each round, and compares what arrives.
bool DeviceLink::answers() {
  const size_t largest = std::min(max_bytes_, kProvenBytes) / sizeof(uint32_t) * sizeof(uint32_t);
  const std::unique_ptr<Memory> sent = from_->reserve(largest), received = to_->reserve(largest);
  for (const size_t bytes : {std::min<size_t>(sizeof(uint32_t), largest), std::min<size_t>(4100, largest), largest}) {
    std::vector<uint32_t> pattern(bytes / sizeof(uint32_t)), answer(pattern.size());
    for (uint32_t round = 0; round < kRounds; ++round) {
      for (uint32_t i = 0; i < pattern.size(); ++i) pattern[i] = (i + round * 7919 + 1) * 2654435761u;
      from_->upload(sent->data(), pattern.data(), bytes);
      send(received->data(), sent->data(), bytes);
      to_->download(answer.data(), received->data(), bytes);
      if (answer != pattern) return false;
    }
  }
  from_->wait();
  return true;
}

double DeviceLink::time_us(size_t bytes) {
  using Clock = std::chrono::steady_clock;
  const std::unique_ptr<Memory> sent = from_->reserve(bytes), received = to_->reserve(bytes);
  from_->wait();
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < kRounds; ++i) {
    send(received->data(), sent->data(), bytes);
    to_->wait();
  }
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / kRounds;
}

void LinkCopy::send() const {
  if (link != nullptr) link->send(to, from, bytes);
}

void DeviceLink::send(void* to, const void* x, size_t bytes) {
  LB_ASSERT(bytes <= max_bytes_);
  if (recorded_ != nullptr) return recorded_->push_back({this, to, x, bytes});
  const unsigned n = n_sent_++;
  const Slot& slot = slots_[n % kBuffers];
  Copy& copy = copies_[n % kCopies];
  const Copy& before = copies_[(n - kBuffers) % kCopies];  // from the same buffer
  to_->await(copy.emptied);                                // mostly long ago
  copy.order = ++n_copies;
  const gpu::Queue &sender = from_->queue(), &receiver = to_->queue();
  auto* const source = static_cast<std::byte*>(const_cast<void*>(x));
  const auto wait = [&](const gpu::Queue& queue, const gpu::Event& event) {
    has_two_drivers_ ? to_->await(event) : queue.wait(event);
  };
  wait(sender, before.emptied);
  if (path_ == LinkPath::kPeer) {
    sender.copy_on_device(slot.data(), source, bytes);
  } else {
    sender.copy_to_host(slot.data(), source, bytes);
  }
  sender.record(copy.filled);
  wait(receiver, copy.filled);
  if (path_ == LinkPath::kPeer) {
    receiver.copy_peer(to, to_->pack().device(), slot.data(), from_->pack().device(), bytes);
  } else {
    receiver.copy_to_device(to, slot.data(), bytes);
  }
  receiver.record(copy.emptied);
}

std::vector<DeviceLink::Pending> DeviceLink::pending() const {
  std::vector<Pending> found;
  for (const Copy& copy : copies_)
    if (!copy.emptied.is_done()) found.push_back({copy.order, copy.filled.is_done()});
  return found;
}

}  // namespace lb
