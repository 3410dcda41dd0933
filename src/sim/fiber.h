// Fibers: each GPU thread has a separate stack and a context switch to and from the scheduler.
#pragma once

#include <cstddef>

namespace lb::gpu::sim {

// A stack is mapped once and reused by block after block. A guard page is below it.
class Stack {
 public:
  explicit Stack(size_t bytes);  // throws std::bad_alloc
  Stack(Stack&& other) noexcept;
  Stack& operator=(Stack&&) = delete;
  ~Stack();

  std::byte* low() const { return low_; }
  size_t bytes() const { return bytes_; }
  void unpoison_frames() const;  // clears address sanitizer's marks of the frames of an abandoned fiber

 private:
  std::byte* low_;
  size_t bytes_;
};

// The saved context of an OS thread's scheduler while a fiber runs.
struct Home {
  void* stack_pointer;
  const void* stack_low;
  size_t stack_bytes;
};

// A fiber stays on one OS thread.
class Fiber {
 public:
  Fiber(const Stack& stack, Home& home) : stack_(&stack), home_(&home) {}

  // The next resume() calls entry on an empty stack. The fiber ends when entry returns.
  void start(void (*entry)());
  void resume();                // called by the scheduler
  void begin();                 // called on the fiber at its first resume()
  void suspend();               // called on the fiber: switches to the scheduler until the next resume()
  [[noreturn]] void abandon();  // called on the fiber, from any frame: switches to the scheduler for good

 private:
  void leave(void** fake_stack);

  const Stack* stack_;
  Home* home_;
  void (*entry_)() = nullptr;  // null after it has been called
  void* stack_pointer_ = nullptr;
  void* fake_stack_ = nullptr;  // address sanitizer's fake stack while the fiber is suspended
};

}  // namespace lb::gpu::sim
