// Runs ranks as threads of the test, connected over loopback.
#pragma once

#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "dtopp/distributed/backend_collectives.h"
#include "dtopp/distributed/rendezvous.h"
#include "dtopp/distributed/shard_layout.h"

namespace dtopp::distributed {

constexpr ParallelDims ep_by_edp(int64_t ep_size, int64_t edp_size, int64_t nodes = 1) {
  return {ep_size * edp_size, nodes, ep_size};
}

inline GlooOptions on_loopback() { return {.host = "127.0.0.1", .timeout = std::chrono::seconds(20)}; }

// Runs body(rank, store) in `size` threads. Rethrows the error of the lowest rank that failed.
template <class Body>
void run_ranks(int64_t size, Body body) {
  configure_transport();
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank, store);
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

// Runs body(collectives) in `size` threads that form one group.
template <class Body>
void run_group(int64_t size, Body body) {
  run_ranks(size, [&](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
    const auto collectives = make_gloo_collectives(store, "all", rank, all_ranks(size), on_loopback());
    body(*collectives);
  });
}

}  // namespace dtopp::distributed
