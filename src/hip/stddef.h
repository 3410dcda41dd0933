// The C header for device code, which is compiled without standard include folders (-nostdinc).
#pragma once

typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
