// Where ranks find each other: a store of keys and values that one process serves over TCP.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "dtopp/ops/core/torch.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace dtopp {

struct StoreOptions {
  std::string host{};  // of the server
  int64_t port = 0;    // of the server; one that serves may give 0: any free one
  bool is_server = false;
  bool loopback_only = false;  // where all ranks are on this host: the server listens on 127.0.0.1 alone
  std::string prefix{};        // of all keys, so that an earlier attempt's are not seen; none: ""
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  // of connecting, and of waiting for a key
};

struct StoreConnection {
  c10::intrusive_ptr<c10d::Store> store;
  int64_t port;
};

// Serves or connects; clients wait for the server. The server's process ends last: the store ends with it. A
// thread that may block in the store takes a connection of its own, store->clone(). UsageError: a host
// without address, a port that cannot be served; ResourceError: no server there in time.
StoreConnection make_store(const StoreOptions& options);

// For a program's beginning, before it has threads. Torch's stores and process groups write what they throw
// to stderr as well, over many lines: from now on they only throw. They note each collective in a
// FlightRecorder, which two threads that use groups of their own break: it is off, unless
// TORCH_FR_BUFFER_SIZE is set. Nor do the threads that look after NCCL's collectives end the process, unless
// TORCH_NCCL_ASYNC_ERROR_HANDLING and its like are set: who ends it says why (DeviceGroups::failure).
void configure_transport();

}  // namespace dtopp
