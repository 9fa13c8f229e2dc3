// The variables of a launcher, parted by NUL, and Slurm's lists. A rank is below the number of ranks.
#include "dtopp/launch/launch_environment.h"

#include "tests/fuzz/fuzz.h"

using namespace dtopp;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  std::vector<std::string> variables;
  while (!input.empty() && variables.size() < 32) variables.push_back(input.part());
  fuzz::accepts([&] {
    const launch::LaunchEnvironment place = launch::read_launch_environment(variables);
    fuzz::require(place.rank >= 0 && place.rank < place.world_size, "a rank is below the number of ranks");
    fuzz::require(place.local_rank >= 0 && place.local_rank < place.world_size, "so is a local rank");
    fuzz::require(place.local_world_size <= place.world_size, "a machine has at most all ranks");
    fuzz::require(place.alone() || !place.master_addr.empty(), "several ranks have an address");
  });
  for (const std::string& text : variables) {
    if (const auto host = launch::first_host(text)) fuzz::require(!host->empty(), "a host has a name");
    for (const int64_t node : {0, 1, 7})
      if (const auto tasks = launch::tasks_on_node(text, node))
        fuzz::require(*tasks >= 0, "tasks are counted");
  }
  return 0;
}
