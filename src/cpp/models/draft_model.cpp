#include "models/draft_model.h"
namespace lb {
std::unique_ptr<DraftModel> make_draft_model(const ModelFile&, const Model&) { return nullptr; }
std::unique_ptr<DraftModel> make_mtp(const ModelFile&, const Model&) { return nullptr; }
size_t DraftModel::workspace_bytes(int) const { return 0; }
DraftWorkspace DraftModel::workspace(Carver, int) const { return {}; }
}
