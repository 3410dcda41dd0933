// DeviceLink: hands rows from a stream on one GPU to a stream on another. The receiver copies them directly from the
// sender's memory (peer access) where known answers prove that path, else through pinned host memory. Two buffers: the
// sender may compute the next rows while the receiver still reads the previous ones. Queues of different drivers cannot
// wait for each other, so there the host waits for the sender's copy.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "device/memory.h"
#include "dispatch/gpu_stream.h"
#include "dispatch/link_path.h"

namespace lb {

// Lets a device reach the memory of its peer. Returns the reason if it cannot; "" if it can.
std::string enable_peer(const gpu::Device& device, const gpu::Device& peer);
// Throws kUnsupported if the wanted path is kPeer. why: peers cannot be used.
void check_may_use_host(LinkPath wanted, const std::string& why);

class DeviceLink {
 public:
  // max_bytes: the longest rows. Throws kUnsupported if the wanted path is kPeer and cannot be used, and kDevice if
  // host memory does not return the answers.
  DeviceLink(GpuStream& from, GpuStream& to, size_t max_bytes, LinkPath wanted);
  DeviceLink(DeviceLink&&) = default;
  // Bytes of the sender's device memory that the buffers take, at most.
  static size_t planned_bytes(size_t max_bytes) { return kBuffers * ((max_bytes + 255) / 256 * 256); }

  LinkPath path() const { return path_; }
  // Whether the devices belong to different drivers: GPUs of two vendors.
  bool has_two_drivers() const { return has_two_drivers_; }
  // "peer", or "host: device 0 has no peer access to device 1"
  std::string to_string() const { return path_ == LinkPath::kPeer ? "peer" : "host: " + why_; }

  // GpuStream::receive(): rows at x on the sender go to `to` on the receiver. norm_w: the weights, on the sender, of
  // the norm that reads them. after: another copy between these devices, which follows.
  void hand_over(float* to, const float* x, size_t bytes, const float* norm_w, const LinkCopy& after = {}) {
    to_->receive({from_, {this, to, x, bytes}, norm_w, after});
  }
  // Copies `bytes` bytes at x on the sender to `to` on the receiver, between the work sent to the streams before and
  // after. x may be overwritten by the sender's next work.
  void send(void* to, const void* x, size_t bytes);
  // Appends all further copies to a list instead of sending them; null: sends them.
  void record(std::vector<LinkCopy>* copies) { recorded_ = copies; }
  // Mean microseconds from send() until the host sees the end of the copy.
  double time_us(size_t bytes);

  GpuStream& from() const { return *from_; }
  GpuStream& to() const { return *to_; }
  // A copy that has not ended.
  struct Pending {
    uint64_t order;  // of all copies of the process, as the host sent them
    bool is_filled;  // the sender has done its part
  };
  // Any thread may ask.
  std::vector<Pending> pending() const;

 private:
  static constexpr int kBuffers = 2;
  // Copies that the host may send ahead of the devices.
  static constexpr int kCopies = 32;
  struct Slot {
    gpu::Buffer buffer;                       // on the sender, or pinned near the receiver; empty with two drivers
    std::unique_ptr<gpu::SharedPages> pages;  // with two drivers

    std::byte* data() const { return pages ? pages->data() : buffer.data(); }
  };
  struct Copy {
    Copy(const gpu::Device& sender, const gpu::Device& receiver) : filled(sender), emptied(receiver) {}

    gpu::Event filled;                // on the sender
    gpu::Event emptied;               // on the receiver
    std::atomic<uint64_t> order = 0;  // as Pending::order
  };

  void use(LinkPath path);
  bool answers();

  GpuStream *from_, *to_;
  size_t max_bytes_;
  bool has_two_drivers_;
  LinkPath path_ = LinkPath::kPeer;
  std::string why_;  // the path is not kPeer
  std::vector<Slot> slots_;
  std::deque<Copy> copies_;  // [kCopies], the newest in turn
  unsigned n_sent_ = 0;
  std::vector<LinkCopy>* recorded_ = nullptr;  // set by record(); else null
};

}  // namespace lb
