// A shared pointer that deletes its object only in the process that made it. A forked child has none of the object's
// threads and no usable GPU context: joining or freeing them there would hang. The child's copy stays until it ends.
#pragma once

#include <unistd.h>

#include <memory>

namespace lb {

template <class T>
std::shared_ptr<T> process_owned(T* object) {
  return {object, [owner = getpid()](const T* owned) {
            if (getpid() == owner) delete owned;
          }};
}

}  // namespace lb
