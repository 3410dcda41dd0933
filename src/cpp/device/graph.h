// A graph: work captured from a queue once and replayed with one driver call.
#pragma once

#include "device/queue.h"

namespace lb::gpu {

// While a capture is open, work sent to the queue is recorded instead of executed. finish() returns the recorded graph;
// the destructor of an unfinished capture discards it.
class Capture {
 public:
  explicit Capture(const Queue& queue);
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  Resource finish();

 private:
  const Queue& queue_;
  bool open_ = true;
};

class Graph {
 public:
  // captured: of Capture::finish(). While a thread has a capture open, drivers refuse to instantiate a graph on it.
  explicit Graph(const Resource& captured) : executable_(instantiate(captured)) {}

  // Replaces the graph's work by another capture: true when the driver could update in place, false when the graph was
  // instantiated again.
  bool update(Capture& capture);
  void launch(const Queue& queue) const;

 private:
  static Resource instantiate(const Resource& graph);

  Resource executable_;
};

}  // namespace lb::gpu
