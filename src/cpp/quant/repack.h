// Moving a weight matrix between the blocks of a file and the planes of a device (quant/planes.h). Exact both ways.
#pragma once

#include <cstddef>

#include "quant/planes.h"

namespace lb::quant {

// plane_layout() of a matrix; throws naming the type when n_in is not whole blocks.
PlaneLayout checked_plane_layout(DType type, int n_out, int n_in);

// planes [layout.bytes] <- blocks [n_out, n_in]; what is only alignment becomes zero.
void to_planes(DType type, int n_out, int n_in, const void* blocks, std::byte* planes);
// The same for some rows of the matrix, so that tasks can share the work: they write nothing in common.
void to_planes(DType type, int n_out, int n_in, const void* blocks, std::byte* planes, int first_row, int n_rows);

void from_planes(DType type, int n_out, int n_in, const std::byte* planes, void* blocks);

}  // namespace lb::quant
