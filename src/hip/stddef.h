// The C header for device code, which is compiled with no standard include folder (-nostdinc).
#pragma once

typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
