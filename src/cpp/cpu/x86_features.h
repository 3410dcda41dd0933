// Instruction sets of this x86-64 processor that the operating system supports too: cpuid for the processor, XCR0 for
// the registers that a context switch saves. __builtin_cpu_supports is not used: in a program linked by zig its table
// stays empty, and every answer is no.
#pragma once

#include <cpuid.h>

#include <cstdint>

namespace lb::cpu {

class X86Features {
 public:
  X86Features() {
    uint32_t eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx >> 27 & 1)) return;  // OSXSAVE: xgetbv may be used
    const uint64_t saved = xcr0();
    const bool saves_ymm = (saved & 0x6) == 0x6, saves_zmm = (saved & 0xe6) == 0xe6;
    const bool has_fma = ecx >> 12 & 1, has_f16c = ecx >> 29 & 1;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return;
    has_avx2_ = saves_ymm && has_fma && has_f16c && (ebx >> 5 & 1);
    const uint32_t f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31, vbmi_vnni = 1u << 1 | 1u << 11;
    has_avx512_ = has_avx2_ && saves_zmm && (ebx & f_dq_bw_vl) == f_dq_bw_vl && (ecx & vbmi_vnni) == vbmi_vnni;
  }

  bool has_avx2() const { return has_avx2_; }      // AVX2, FMA, F16C
  bool has_avx512() const { return has_avx512_; }  // has_avx2() and AVX-512 F, DQ, BW, VL, VBMI, VNNI

 private:
  static uint64_t xcr0() {
    uint32_t low, high;
    asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return uint64_t{high} << 32 | low;
  }

  bool has_avx2_ = false;
  bool has_avx512_ = false;
};

}  // namespace lb::cpu
