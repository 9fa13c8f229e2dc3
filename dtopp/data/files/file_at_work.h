// Names the file at work when memory runs out.
#pragma once

#include <new>
#include <string>

#include "dtopp/base/errors.h"

namespace dtopp::data {

// Calls work(), which prepares `file` or a part of it, and returns the result.
//
// Throws:        ResourceError with the file if memory is too small; errors of `work`
template <class Work>
auto with_file_at_work(const std::string& file, const Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    throw ResourceError(file + ": out of memory: lower --workers, or split the file");
  }
}

}  // namespace dtopp::data
