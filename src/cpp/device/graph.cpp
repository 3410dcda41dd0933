// Captures, instantiates, updates and replays graphs.
#include "device/graph.h"

namespace lb::gpu {

Capture::Capture(const Queue& queue) : queue_(queue) {
  constexpr int kThreadLocal = 1;  // other threads may allocate and synchronise meanwhile
  queue.context().call(queue.context().driver().capture_begin, queue.handle(), kThreadLocal);
}

Capture::~Capture() {
  if (!open_) return;
  Handle graph = nullptr;
  const Context& context = queue_.context();
  if (context.status_of(context.driver().capture_end, queue_.handle(), &graph) == 0)
    Resource(queue_.shared_context(), graph, &Driver::graph_destroy);
}

Resource Capture::finish() {
  open_ = false;
  Handle graph = nullptr;
  const Context& context = queue_.context();
  context.call(context.driver().capture_end, queue_.handle(), &graph);
  return Resource(queue_.shared_context(), graph, &Driver::graph_destroy);
}

Resource Graph::instantiate(const Resource& graph) {
  Handle executable = nullptr;
  graph.context().call(graph.driver().graph_instantiate, &executable, graph.handle(), 0);
  return Resource(graph.shared_context(), executable, &Driver::graph_executable_destroy);
}

bool Graph::update(Capture& capture) {
  const Resource graph = capture.finish();
  const auto& call = graph.driver().graph_update;
  Handle first_difference = nullptr;
  int reason = 0;
  const Status status =
      graph.context().status_of(call, executable_.handle(), graph.handle(), &first_difference, &reason);
  if (status == 0) return true;
  if (status != kGraphUpdateFailed) graph.context().check(call.name, status);
  executable_ = instantiate(graph);
  return false;
}

void Graph::launch(const Queue& queue) const {
  queue.context().call(queue.context().driver().graph_launch, executable_.handle(), queue.handle());
}

}  // namespace lb::gpu
