// Converts an exception to the program's exit status and error message.
#pragma once

#include <exception>

#include "dtopp/base/errors.h"

namespace dtopp::distributed {
struct Failure {
  ExitStatus status;
  std::string message;  // always a single line
};

Failure failure_of(const std::exception& error);

// The memory that an error lacks, "memory" or "device memory"; null for any other error.
const char* lacking_memory(const std::exception& error);

// Calls body(). Adds the command's advice, such as "lower --workers", to a lack of memory.
//
// Throws:        ResourceError if memory is too small; errors of `body`
template <class Body>
void with_memory_advice(const std::string& advice, const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    const char* const memory = lacking_memory(error);
    if (!memory) throw;
    throw ResourceError("out of ", memory, ": ", advice);
  }
}

}  // namespace dtopp::distributed
