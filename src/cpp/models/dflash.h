// DFlash: a draft model that predicts a block of masked tokens in one pass. Source: the reference implementation (PyPI
// dflash 0.1.0), versions 1 and 2.
#pragma once

#include "models/dflash_config.h"
#include "models/draft_model.h"

namespace lb {

std::unique_ptr<DraftModel> make_dflash(const ModelFile& file, const Model& target);

}  // namespace lb
