// Opens the key-value store through which ranks find each other. One process serves it over TCP.
//
// Throws:        UsageError if the host has no address or the port cannot be served; ResourceError if no
//                server answers in time; StoppedEarly at a stop within a StopScope
// Collective:    no; clients wait for the server
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "dtopp/base/stop.h"
#include "dtopp/ops/core/torch.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace dtopp::distributed {

// Opens a socket that listens on 127.0.0.1 only or on every interface. The caller closes it. Port 0 is
// replaced by the free port that the system chose. Throws std::runtime_error with the reason if it fails.
int listening_socket(uint16_t& port, bool loopback_only);

// Connects to a server and returns the socket, which the caller closes. Throws std::runtime_error if none
// answers.
int connected_socket(const std::string& host, uint16_t port);

// Sends and receives lines of text over TCP, for a thread that waits for several connections with poll().
// Nothing blocks.
class LineSocket {
 public:
  explicit LineSocket(int descriptor) : descriptor_(descriptor) {}  // takes a connected socket
  ~LineSocket();
  LineSocket(const LineSocket&) = delete;
  LineSocket& operator=(const LineSocket&) = delete;

  int descriptor() const { return descriptor_; }
  // Sends a line. Bytes that the connection does not accept now are sent by a later send().
  void send(const std::string& line);
  // Whether the system has accepted all bytes.
  bool is_idle() const { return outgoing_.empty(); }
  // Returns the complete lines that have arrived since the last call.
  std::vector<std::string> receive();
  // True when no further line can arrive: the other end is closed, or its process has ended.
  bool has_ended() const { return ended_; }
  // Ends this direction: the other end reads all lines and then the end. close() would discard lines that the
  // other end has not read, if this end has unread bytes.
  void finish();

 private:
  int descriptor_;
  std::string incoming_, outgoing_;
  bool ended_ = false;
};

struct StoreOptions {
  std::string host{};  // of the server
  int64_t port = 0;    // of the server, which may pass 0 for any free port
  bool is_server = false;
  bool loopback_only = false;  // all ranks are on this host: the server listens on 127.0.0.1 only
  std::string prefix{};        // of all keys, to hide the keys of an earlier attempt; may be empty
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  // of connecting and of waiting for a key
};

struct StoreConnection {
  c10::intrusive_ptr<c10d::Store> store;
  int64_t port;
};

// Calls wait(time) for slices of the timeout until one succeeds. Throws the error of the last slice, and an
// error before a slice's end, which is no timeout. A stop ends the wait between two slices.
template <class Wait>
void wait_in_slices(std::chrono::milliseconds timeout, std::chrono::milliseconds slice, const Wait& wait) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + timeout;
  for (;;) {
    const Clock::time_point begin = Clock::now();
    try {
      return wait(std::min(slice, std::chrono::ceil<std::chrono::milliseconds>(end - begin)));
    } catch (const std::exception&) {
      end_if_stopped();
      const Clock::time_point now = Clock::now();
      if (now >= end || now - begin < slice / 2) throw;
    }
  }
}

// Serves the store or connects to it. The store ends with the server's process, which must end last. A thread
// that may block in the store needs its own connection, store->clone().
StoreConnection make_store(const StoreOptions& options);

// Configures torch's transports. Call at the start of the program, before it has threads.
//
// - Torch's stores and process groups no longer print their exceptions to stderr; they only throw.
// - The FlightRecorder is off unless TORCH_FR_BUFFER_SIZE is set: two threads with separate groups corrupt
//   it.
// - NCCL's threads do not end the process, unless TORCH_NCCL_ASYNC_ERROR_HANDLING and similar variables are
//   set. dtopp reports the failure instead (DeviceGroups::failure).
void configure_transport();

}  // namespace dtopp::distributed
