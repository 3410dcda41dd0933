// Work captured from a queue once and replayed with one call.
#pragma once

#include "device/queue.h"

namespace lb::gpu {

// From here until finish(), what is sent to the queue is written down instead of run. Destroyed unfinished, it ends
// the capture and drops what was written.
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
  explicit Graph(Capture& capture) : executable_(instantiate(capture.finish())) {}

  // Takes over another capture: in place when it has the same shape (true), else by building the graph anew (false).
  bool update(Capture& capture);
  void launch(const Queue& queue) const;

 private:
  static Resource instantiate(const Resource& graph);

  Resource executable_;
};

}  // namespace lb::gpu
