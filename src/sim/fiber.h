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

 private:
  std::byte* low_;
  size_t bytes_;
};

class Fiber {
 public:
  explicit Fiber(const Stack& stack) : stack_(&stack) {}

  // The next resume() calls entry on an empty stack, whatever ran there before. entry ends in finish().
  void start(void (*entry)());
  void resume();               // called by the scheduler
  void suspend();              // called on the fiber: back to the scheduler, until the next resume()
  [[noreturn]] void finish();  // called on the fiber: back to the scheduler for good

 private:
  void leave(void** fake_stack);

  const Stack* stack_;
  void (*entry_)() = nullptr;
  void* stack_pointer_ = nullptr;
  void* fake_stack_ = nullptr;  // address sanitizer's, while the fiber is suspended
};

}  // namespace lb::gpu::sim
