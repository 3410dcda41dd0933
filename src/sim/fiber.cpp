// Fibers' stacks, and the context switch of AArch64.
#include "fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

#include "sanitizer.h"

// The entry point of a new stack: where its first switch continues.
extern "C" void lb_sim_enter();

#if defined(__aarch64__)
// Pushes the callee-saved registers to this stack, stores its stack pointer in *from and resumes the stack pointer
// `to`.
constexpr size_t kSavedWords = 20;  // x19-x30 and d8-d15; x30 is the return address
asm(R"(
.text
.hidden lb_sim_switch
.globl lb_sim_switch
.type lb_sim_switch, %function
lb_sim_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size lb_sim_switch, .-lb_sim_switch
)");
#elif !defined(__x86_64__)
#error "sim has a context switch for x86-64 and AArch64"
#endif

namespace lb::gpu::sim {
namespace {

thread_local Fiber* entered;  // the fiber that lb_sim_enter() begins

size_t page_bytes() { return size_t(sysconf(_SC_PAGESIZE)); }

}  // namespace

Stack::Stack(size_t bytes) {
  const size_t page = page_bytes();
  bytes_ = (bytes + page - 1) / page * page;
  void* mapping =
      mmap(nullptr, bytes_ + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  if (mprotect(mapping, page, PROT_NONE) != 0) {
    munmap(mapping, bytes_ + page);
    throw std::bad_alloc();
  }
  low_ = static_cast<std::byte*>(mapping) + page;
}

Stack::Stack(Stack&& other) noexcept : low_(std::exchange(other.low_, nullptr)), bytes_(other.bytes_) {}

Stack::~Stack() {
  if (!low_) return;
  unpoison(low_, bytes_);  // the next mapping at this address starts clean
  munmap(low_ - page_bytes(), bytes_ + page_bytes());
}

void Stack::unpoison_frames() const { unpoison(low_, bytes_); }

extern "C" void lb_sim_enter() {
  entered->begin();
  std::abort();  // a fiber that has ended is never resumed
}

void Fiber::start(void (*entry)()) {
  entry_ = entry;
  fake_stack_ = nullptr;
  auto* top = reinterpret_cast<uintptr_t*>(stack_->low() + stack_->bytes());
#if defined(__x86_64__)
  top[-1] = 0;  // the ABI wants the return address 8 bytes below a multiple of 16
  top[-2] = reinterpret_cast<uintptr_t>(&lb_sim_enter);
  uintptr_t* saved = top - 2;
#else
  uintptr_t* saved = top - kSavedWords;
  for (size_t i = 0; i < kSavedWords; ++i) saved[i] = 0;
  saved[11] = reinterpret_cast<uintptr_t>(&lb_sim_enter);
#endif
  stack_pointer_ = saved;
}

void Fiber::set_entered() { entered = this; }

void Fiber::begin() {
  finish_switch(nullptr, &home_->stack_low, &home_->stack_bytes);
  std::exchange(entry_, nullptr)();
  leave();
}

void Fiber::leave() {
  start_switch(nullptr, home_->stack_low, home_->stack_bytes);
  switch_stack(&stack_pointer_, home_->stack_pointer);
}

void Fiber::abandon() {
  leave();
  std::abort();
}

}  // namespace lb::gpu::sim
