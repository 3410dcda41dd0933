// Device: one card of this process, or its CPU. Engines and scorers share it: they take turns, their plans count memory
// that others hold, and an engine may lend memory to a scorer.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/fair_lock.h"
#include "dispatch/lent_memory.h"
#include "ops/stream.h"

namespace lb {

class DeviceTurn;

class Device {
 public:
  // The device of this name: "cpu", "cuda:0". It lives as long as the process. A forked child creates new devices,
  // because a thread that exists only in the parent may hold the turn.
  static Device& find(const std::string& name);
  // promised_bytes() of the device of this name; 0 if unused.
  static size_t promised_bytes(const std::string& name);

  explicit Device(std::string name) : name_(std::move(name)) {}
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const std::string& name() const { return name_; }
  // Memory that plans have promised to sessions and that is not yet allocated (Promise). Other plans leave it free.
  size_t promised_bytes() const;
  // Held while an engine plans and allocates, so that the next plan sees up-to-date free memory.
  std::mutex& opening() { return opening_; }

  // Runs `work` while the borrower owns the lent memory. The caller has the turn, so the lender has no work in flight.
  // `work` must leave none in flight either, even when it throws.
  static void with_loan(LentMemory& lent, const std::function<void()>& work);

 private:
  friend class DeviceTurn;
  friend class Promise;

  std::string name_;
  std::mutex opening_;
  FairLock turn_;
  // Stack of the turns that the owner of turn_ has locked: between the layers of a prompt's chunk it may take another
  // stream's turn. The owner of turn_ also owns the next member.
  std::vector<DeviceTurn*> holders_;
  std::weak_ptr<Stream> newest_;  // the only stream that may have work in flight
  mutable std::mutex promised_mutex_;
  size_t promised_bytes_ = 0;
};

// The turn of one stream on its device, to lock. Threads get the turn in FIFO order; the lock is recursive. When the
// turn passes to another stream, the previous stream's work is complete. So kernels whose blocks spin on each other, as
// the megakernel's do, never share a card with another stream's kernels.
class DeviceTurn {
 public:
  // stream: null for work that creates its stream.
  DeviceTurn(Device& device, std::shared_ptr<Stream> stream) : device_(device), stream_(std::move(stream)) {}
  DeviceTurn(const DeviceTurn&) = delete;
  DeviceTurn& operator=(const DeviceTurn&) = delete;

  const Device& device() const { return device_; }
  void lock();
  void unlock();
  // Yields to the threads already waiting. The caller has locked exactly once.
  void let_others() {
    if (!device_.turn_.is_wanted()) return;
    unlock();
    lock();
  }

 private:
  void settle();

  Device& device_;
  std::shared_ptr<Stream> stream_;
};

// The turns of all shards of an engine, to lock together. Every engine locks its devices in the same order, so that no
// two engines wait for each other.
class EngineTurn {
 public:
  explicit EngineTurn(std::vector<DeviceTurn*> turns);

  void lock();
  void unlock();

 private:
  std::vector<DeviceTurn*> turns_;  // in the order of their devices
};

// Memory that an engine's plan promises to its sessions on a device.
class Promise {
 public:
  Promise(Device& device, size_t session_bytes, int n_sessions);
  ~Promise() { change(0, 0); }
  Promise(const Promise&) = delete;
  Promise& operator=(const Promise&) = delete;

  // An open session: its memory is allocated, so the device's free memory no longer includes it.
  class Kept {
   public:
    explicit Kept(Promise& promise) : promise_(promise) { promise_.change(promise_.n_sessions_, 1); }
    ~Kept() { promise_.change(promise_.n_sessions_, -1); }
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;

   private:
    Promise& promise_;
  };

 private:
  void change(int n_sessions, int n_more_open);
  size_t bytes() const;  // bytes promised to the sessions not yet open

  Device& device_;
  size_t session_bytes_;
  int n_sessions_ = 0, n_open_ = 0;
};

}  // namespace lb
