// Refuses files that look like a supported model but would be computed wrongly, each with its reason and a way out.
#pragma once

#include "format/model_file.h"

namespace lb {

// Throws kUnsupported: adapters, rerankers and classifiers, bidirectional attention, quantised weights of other tools.
void refuse_other_formats(const ModelFile& file);

}  // namespace lb
