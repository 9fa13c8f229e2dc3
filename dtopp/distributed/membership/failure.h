// Converts an exception to the program's exit status and error message.
#pragma once

#include <exception>
#include <new>
#include <string>

#include <c10/util/Exception.h>

#include "dtopp/base/errors.h"

namespace dtopp::distributed {

struct Failure {
  ExitStatus status;
  std::string message;  // always a single line
};

Failure failure_of(const std::exception& error);

// Whether libtorch could not allocate a CPU tensor. It has no exception type of its own for this.
bool is_out_of_host_memory(const c10::Error& error);

// Calls body(). Adds the command's advice, such as "lower --workers", to a lack of memory.
//
// Throws:        ResourceError if memory is too small; errors of `body`
template <class Body>
void with_memory_advice(const std::string& advice, const Body& body) {
  try {
    body();
  } catch (const std::bad_alloc&) {
    throw ResourceError("out of memory: " + advice);
  } catch (const c10::OutOfMemoryError&) {
    throw ResourceError("out of device memory: " + advice);
  } catch (const c10::Error& error) {
    if (!is_out_of_host_memory(error)) throw;
    throw ResourceError("out of memory: " + advice);
  }
}

}  // namespace dtopp::distributed
