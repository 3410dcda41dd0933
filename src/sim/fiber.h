// Fibers: each GPU thread has a separate stack and a context switch to and from the scheduler.
#pragma once

#include <cstddef>

#include "sanitizer.h"

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

// Stores the stack pointer in *from and resumes the stack pointer `to`. On x86-64 without a call and a return, whose
// addresses the processor would predict wrongly after a change of stacks: the lanes of a warp resume at one place.
#if defined(__x86_64__)
[[gnu::always_inline]] inline void switch_stack(void** from, void* to) {
  asm volatile(R"(
    leaq -128(%%rsp), %%rsp  # the red zone
    pushq %%rbp
    pushq %%rbx
    leaq 1f(%%rip), %%rax
    pushq %%rax
    movq %%rsp, (%0)
    movq %1, %%rsp
    popq %%rax
    jmpq *%%rax
  1:
    popq %%rbx
    popq %%rbp
    leaq 128(%%rsp), %%rsp
  )"
               : "+D"(from), "+S"(to)
               :
               : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2",
                 "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14",
                 "xmm15", "cc", "memory");
}
#else
extern "C" void lb_sim_switch(void** from, void* to);
inline void switch_stack(void** from, void* to) { lb_sim_switch(from, to); }
#endif

// A fiber stays on one OS thread.
class Fiber {
 public:
  Fiber(const Stack& stack, Home& home) : stack_(&stack), home_(&home) {}

  // The next resume() calls entry on an empty stack. The fiber ends when entry returns.
  void start(void (*entry)());
  // Called by the scheduler.
  [[gnu::always_inline]] void resume() {
    if (entry_) [[unlikely]]
      set_entered();
    void* fake_stack = nullptr;
    start_switch(&fake_stack, stack_->low(), stack_->bytes());
    switch_stack(&home_->stack_pointer, stack_pointer_);
    finish_switch(fake_stack, nullptr, nullptr);
  }
  void begin();  // called on the fiber at its first resume()
  // Called on the fiber: switches to the scheduler until the next resume().
  [[gnu::always_inline]] void suspend() {
    start_switch(&fake_stack_, home_->stack_low, home_->stack_bytes);
    switch_stack(&stack_pointer_, home_->stack_pointer);
    finish_switch(fake_stack_, &home_->stack_low, &home_->stack_bytes);
  }
  // Called on the fiber: switches to another one. Address sanitizer is not told.
  [[gnu::always_inline]] void switch_to(Fiber& next) {
    if (next.entry_) [[unlikely]]
      next.set_entered();
    switch_stack(&stack_pointer_, next.stack_pointer_);
  }
  [[noreturn]] void abandon();  // called on the fiber, from any frame: switches to the scheduler for good

 private:
  void set_entered();
  void leave();  // for good

  const Stack* stack_;
  Home* home_;
  void (*entry_)() = nullptr;  // null after it has been called
  void* stack_pointer_ = nullptr;
  void* fake_stack_ = nullptr;  // address sanitizer's fake stack while the fiber is suspended
};

}  // namespace lb::gpu::sim
