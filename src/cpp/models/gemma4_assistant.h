// The assistant of Gemma 4, a draft model that attends to the target's keys and values. Source: transformers 5.24
// (gemma4_assistant, SinglePositionMultiTokenCandidateGenerator), and llama.cpp's gemma4-assistant for GGUF.
#pragma once

#include "models/draft_model.h"

namespace lb {

// Throws kUnsupported if the file is an assistant with names of older converters.
bool is_gemma4_assistant(const ModelFile& file);
std::unique_ptr<DraftModel> make_gemma4_assistant(const ModelFile& file, const Model& target);

}  // namespace lb
