// NVRTC only, which ships no C library. The types are glibc's on 64-bit hosts, as nvcc takes them, so that both
// compilers choose the same overloads.
#pragma once

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef unsigned long uintptr_t;
