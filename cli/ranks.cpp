#include "cli/ranks.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "dtopp/distributed/gloo_collectives.h"
#include "dtopp/distributed/rendezvous.h"
#include "dtopp/launch/local_ranks.h"

namespace dtopp::cli {
namespace {

// This process's own, which no verb sees as a whole.
std::vector<std::string> command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

std::vector<std::string> without_processes(std::vector<std::string> arguments) {
  const std::string option = "--processes";
  for (size_t i = 0; i < arguments.size();) {
    const auto at = arguments.begin() + static_cast<std::ptrdiff_t>(i);
    if (arguments[i] == option)
      arguments.erase(at, at + std::min<std::ptrdiff_t>(2, arguments.end() - at));
    else if (arguments[i].starts_with(option + "="))
      arguments.erase(at);
    else
      ++i;
  }
  return arguments;
}

World join_ranks(const Place& place, int64_t expert_parallel) {
  const bool local = place.local_size == place.size;
  const StoreConnection store = make_store({.host = place.master_host,
                                            .port = place.master_port,
                                            .is_server = !place.launcher_holds_store && place.rank == 0,
                                            .loopback_only = local,
                                            .prefix = place.store_prefix});
  GlooOptions options;
  if (local) options.host = "127.0.0.1";
  return make_world(store.store, place.rank, place.size, expert_parallel, options);
}

int64_t share_of_threads(const Place& place) {
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  return std::max<int64_t>(1, cores / place.local_size);
}

// Without waiting for what other ranks will not finish.
[[noreturn]] void end_silently(ExitStatus status) {
  std::fflush(nullptr);
  _exit(static_cast<int>(status));
}

}  // namespace

Place own_place() {
  return find_place([](const char* name) -> const char* { return std::getenv(name); });
}

int run_processes(const Place& place, int64_t processes) {
  if (!place.alone())
    throw UsageError("--processes: this process is one of " + std::to_string(place.size) +
                     " ranks already (" + std::to_string(place.rank) + "): leave it out");
  configure_transport();
  const StoreConnection store = make_store({.host = "127.0.0.1", .is_server = true, .loopback_only = true});
  LocalRanks ranks;
  ranks.count = processes;
  ranks.arguments = without_processes(command_line());
  ranks.store_port = static_cast<uint16_t>(store.port);
  const RanksEnd end = run_local_ranks(ranks);
  if (!end.message().empty()) std::fprintf(stderr, "dtopp: %s\n", end.message().c_str());
  return end.status;
}

void run_as_rank(const Place& place, int64_t expert_parallel, const std::function<void(const World&)>& body) {
  if (place.alone()) return body({});
  configure_transport();
  if (place.local_size > 1) at::set_num_threads(static_cast<int>(share_of_threads(place)));
  const World world = join_ranks(place, expert_parallel);
  try {
    body(world);
  } catch (const RankLost& lost) {
    if (place.launcher == Launcher::kOwn) end_silently(lost.status());
    throw;
  } catch (const Error& error) {
    const bool of_all = error.status() == ExitStatus::kStopped || error.status() == ExitStatus::kNumerical;
    if (of_all && place.rank > 0) end_silently(error.status());
    throw;
  }
}

}  // namespace dtopp::cli
