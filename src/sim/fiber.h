// A stack of its own for each GPU thread, and the switch between one of them and the scheduler that resumed it.
#pragma once

#include <cstddef>

namespace lb::gpu::sim {

// Mapped once, reused for block after block; the page below it is not accessible.
class Stack {
 public:
  explicit Stack(size_t bytes);  // throws std::bad_alloc
  Stack(Stack&& other) noexcept;
  Stack& operator=(Stack&&) = delete;
  ~Stack();

  std::byte* low() const { return low_; }
  size_t bytes() const { return bytes_; }
  void forget_frames() const;  // that an error left there: a stack whose fiber came to its end has none

 private:
  std::byte* low_;
  size_t bytes_;
};

// Where an OS thread's scheduler waits while a fiber runs.
struct Home {
  void* stack_pointer;
  const void* stack_low;
  size_t stack_bytes;
};

// Never moves to another OS thread.
class Fiber {
 public:
  Fiber(const Stack& stack, Home& home) : stack_(&stack), home_(&home) {}

  // The next resume() calls entry on an empty stack. Where entry returns the fiber ends.
  void start(void (*entry)());
  void resume();                // called by the scheduler
  void begin();                 // called on the fiber, where it is resumed for the first time
  void suspend();               // called on the fiber: back to the scheduler, until the next resume()
  [[noreturn]] void give_up();  // called on the fiber: back to the scheduler for good, out of any frame

 private:
  void leave(void** fake_stack);

  const Stack* stack_;
  Home* home_;
  void (*entry_)() = nullptr;  // until it is called
  void* stack_pointer_ = nullptr;
  void* fake_stack_ = nullptr;  // address sanitizer's, while the fiber is suspended
};

}  // namespace lb::gpu::sim
