// Converts a weight matrix between a file's blocks and a device's planes (quant/planes.h), exactly in both directions.
// Types without planes of their own become planes of BF16, rounded to nearest even; there is no way back.
#pragma once

#include <cstddef>

#include "quant/planes.h"

namespace lb::quant {

// Returns plane_layout() of a matrix; throws an error that names the type when n_in is not a multiple of its block.
PlaneLayout checked_plane_layout(DType type, int n_out, int n_in);

// planes [layout.bytes] <- blocks [n_out, n_in]; the alignment padding becomes zero.
void to_planes(DType type, int n_out, int n_in, const void* blocks, std::byte* planes);
// Converts only rows [first_row, first_row + n_rows). Tasks with disjoint rows write disjoint bytes.
void to_planes(DType type, int n_out, int n_in, const void* blocks, std::byte* planes, int first_row, int n_rows);

// blocks [n_out, n_in] <- planes [layout.bytes].
void from_planes(DType type, int n_out, int n_in, const std::byte* planes, void* blocks);

}  // namespace lb::quant
