#include "dtopp/distributed/membership/rendezvous.h"

#include <algorithm>
#include <cstdlib>

#include <netdb.h>

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/stop.h"
#include "dtopp/distributed/collectives/transport_error.h"
#include "dtopp/distributed/membership/line_socket.h"

namespace dtopp::distributed {
namespace {

bool resolves(const std::string& host) {
  addrinfo* found = nullptr;
  const bool answer = ::getaddrinfo(host.c_str(), nullptr, nullptr, &found) == 0;
  if (found) ::freeaddrinfo(found);
  return answer;
}

// Connects in slices, between which a stop ends the wait for the server. A server connects to itself in one.
c10::intrusive_ptr<c10d::TCPStore> open_tcp_store(const std::string& host, c10d::TCPStoreOptions tcp) {
  using Clock = std::chrono::steady_clock;
  const std::chrono::milliseconds timeout = tcp.timeout;
  const std::chrono::milliseconds slice = tcp.isServer ? timeout : std::chrono::milliseconds(2000);
  const Clock::time_point end = Clock::now() + timeout;
  for (;;) {
    const Clock::time_point begin = Clock::now();
    tcp.timeout = std::min(slice, std::chrono::ceil<std::chrono::milliseconds>(end - begin));
    try {
      auto store = c10::make_intrusive<c10d::TCPStore>(host, tcp);
      store->setTimeout(timeout);
      return store;
    } catch (const std::exception&) {
      end_if_stopped();
      const Clock::time_point now = Clock::now();
      // An error before the slice's end is no timeout.
      if (tcp.isServer || now >= end || now - begin < slice / 2) throw;
    }
  }
}

}  // namespace

StoreConnection make_store(const StoreOptions& options) {
  const std::string where = c10::str(options.host, ':', options.port);
  if (options.port < 0 || options.port > UINT16_MAX || (options.port == 0 && !options.is_server))
    throw UsageError(where + ": the port is not from 1 to 65535");
  try {
    c10d::TCPStoreOptions tcp;
    tcp.port = static_cast<uint16_t>(options.port);
    tcp.isServer = options.is_server;
    tcp.waitWorkers = false;
    tcp.timeout = options.timeout;
    // TCPStore's own socket would listen on every interface.
    if (options.is_server && options.loopback_only)
      tcp.masterListenFd = listening_socket(tcp.port, /*loopback_only=*/true);
    auto store = open_tcp_store(options.host, tcp);
    const int64_t port = store->getPort();
    if (options.prefix.empty()) return {std::move(store), port};
    return {c10::make_intrusive<c10d::PrefixStore>(options.prefix, std::move(store)), port};
  } catch (const StoppedEarly&) {
    throw;
  } catch (const std::exception& error) {
    if (!resolves(options.host)) throw UsageError(where + ": the host's name has no address");
    if (options.is_server)
      throw UsageError("cannot serve " + where + ": " + reason_of(error) + "; choose another port");
    throw ResourceError(
        c10::str("no store at ", where, " within ", options.timeout.count(), " ms: ", reason_of(error)));
  }
}

void configure_transport() {
  FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", 0);
  for (const char* name :
       {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING", "TORCH_NCCL_RETHROW_CUDA_ERRORS",
        "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"})
    ::setenv(name, "0", 0);
}

}  // namespace dtopp::distributed
