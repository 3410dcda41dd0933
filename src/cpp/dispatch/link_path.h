// LinkPath: how values get from one device of a model to another.
#pragma once

namespace lb {

// kPeer: directly from or into the other device's memory. kHost: through pinned host memory. kAuto, as a request: kPeer
// where known answers prove it, else kHost.
enum class LinkPath { kAuto, kPeer, kHost };

}  // namespace lb
