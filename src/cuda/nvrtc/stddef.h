// NVRTC only, which ships no C library.
#pragma once

typedef unsigned long size_t;
