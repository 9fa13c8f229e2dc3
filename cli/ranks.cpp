#include "cli/ranks.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "cli/stop_signals.h"
#include "dtopp/distributed/membership/cluster.h"
#include "dtopp/distributed/membership/rendezvous.h"
#include "dtopp/launch/child_process.h"
#include "dtopp/launch/local_ranks.h"

namespace dtopp::cli {
namespace {

// Returns the command line of this process. Commands receive only their parsed options.
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

// Returns the launcher's message about the end of its ranks, with the lost rank that they reported, if any.
std::string end_message(const launch::RanksEnd& end, c10d::Store& store) {
  const auto lost = distributed::reported_loss(store);
  if (end.message().empty() || !lost) return end.message();
  // The first rank to end ended only because it lost another one: name the lost rank instead.
  if (end.signal == 0 && end.status == static_cast<int>(ExitStatus::kResource)) return lost->line();
  return end.message() + (lost->rank == end.rank ? ", " + lost->location : "");
}

}  // namespace

launch::LaunchEnvironment own_launch_environment() {
  return launch::read_launch_environment(launch::own_environment());
}

int run_processes(const launch::LaunchEnvironment& environment, int64_t processes) {
  if (!environment.alone())
    throw UsageError("--processes: this process is one of " + std::to_string(environment.world_size) +
                     " ranks (rank " + std::to_string(environment.rank) + ") already; omit --processes");
  distributed::configure_transport();
  const distributed::StoreConnection store =
      distributed::make_store({.host = "127.0.0.1", .is_server = true, .loopback_only = true});
  launch::LocalRanks ranks;
  ranks.count = processes;
  ranks.arguments = without_processes(command_line());
  ranks.store_port = static_cast<uint16_t>(store.port);
  const launch::RanksEnd end = launch::run_local_ranks(ranks);
  const std::string message = end_message(end, *store.store);
  if (!message.empty()) std::fprintf(stderr, "dtopp: %s\n", message.c_str());
  return end.status;
}

void stop_rank_on_signals(const launch::LaunchEnvironment& environment) {
  stop_on_signals(environment.launcher == launch::Launcher::kOwn ? Impatience::kLauncher
                                                                 : Impatience::kSecondSignal);
}

}  // namespace dtopp::cli
