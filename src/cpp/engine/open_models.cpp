#include "engine/open_models.h"

#include "base/error.h"

namespace lb {

OpenModels::OpenModels(const std::string& path, const std::string& draft, const DeviceSizes& sizes)
    : draft(draft), file(open_model_file(path)), models{.target = make_model(file), .draft = nullptr} {
  if (!draft.empty() && draft != "mtp") draft_file = open_model_file(draft);
  models.draft = make_draft(*models.target);
  LB_CHECK(draft != "mtp" || models.draft != nullptr, kUnsupported, path,
           ": the file has no prediction block (MTP) to draft with");
  if (sizes.maps_weights()) return;
  models.target->use_device_types();
  if (models.draft) models.draft->use_device_types();
}

std::unique_ptr<DraftModel> OpenModels::make_draft(const Model& target) const {
  if (draft_file) return make_draft_model(*draft_file, target);
  return draft == "mtp" ? make_mtp(file, target) : nullptr;
}

size_t OpenModels::file_bytes() const {
  return file.tensors().total_bytes() + (draft_file ? draft_file->tensors().total_bytes() : 0);
}

void check_token_ids(std::span<const int32_t> ids, int vocab, int context) {
  for (size_t i = 0; i < ids.size(); ++i)
    LB_CHECK(ids[i] >= 0 && ids[i] < vocab, kInvalid, "token ", i, " is ", ids[i], "; the vocabulary has ", vocab,
             " tokens");
  LB_CHECK(ids.size() <= static_cast<size_t>(context), kInvalid, ids.size(), " tokens do not fit the context of ",
           context, "; load the model with a larger context");
}

void check_plain(const SparseWish& wish, const Model& model) {
  LB_CHECK(wish.alpha == 0 || model.is_plain(), kUnsupported, wish.option, " = ", wish.alpha, ": the layers of ",
           model.info().architecture, " differ in their attention, which block-sparse attention does not support. Use ",
           wish.option, " = 0");
}

std::vector<LayerShape> Models::layer_shapes() const {
  std::vector<LayerShape> shapes;
  for (const Network* network : networks())
    shapes.insert(shapes.end(), network->layer_shapes().begin(), network->layer_shapes().end());
  return shapes;
}

}  // namespace lb
