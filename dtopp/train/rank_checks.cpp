#include "dtopp/train/rank_checks.h"

#include <sstream>

#include "dtopp/distributed/groups/rank_agreement.h"

namespace dtopp {

void check_configuration(const RunConfig& config, Collectives& ranks) {
  if (const auto difference = find_difference(to_yaml(config), ranks)) {
    std::string keys;
    for (const std::string& key : differing_keys(parse_run_config(difference->there, "its configuration"),
                                                 parse_run_config(difference->first, "rank 0's")))
      keys += (keys.empty() ? "" : ", ") + key;
    throw RanksDiffer(ExitStatus::kUsage, difference->name() +
                                              " has another configuration than rank 0 (different: " + keys +
                                              "); start all ranks with the same file and overrides");
  }
}

void check_data(const TrainingData& data, Collectives& ranks) {
  std::string mine;
  for (const auto& [source, hash] : data.content_hashes)
    mine.append(hash).append(" ").append(source).append("\n");
  const auto difference = find_difference(mine, ranks);
  if (!difference) return;
  std::istringstream there(difference->there), first(difference->first);
  std::string source, line;
  while (std::getline(there, source) && std::getline(first, line) && source == line) {
  }
  throw RanksDiffer(ExitStatus::kData, difference->name() + " has other data than rank 0: " +
                                           source.substr(source.find(' ') + 1) +
                                           " has other content there; copy it again");
}

}  // namespace dtopp
