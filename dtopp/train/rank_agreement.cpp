#include "dtopp/train/rank_agreement.h"

#include <algorithm>
#include <sstream>

#include "dtopp/base/hash.h"

namespace dtopp {

std::optional<RankDifference> find_difference(const std::string& mine, Collectives& ranks) {
  if (ranks.size() == 1) return std::nullopt;
  const auto hashes = gather_bytes(ranks, hash_bytes(std::as_bytes(std::span(mine))), "start");
  const auto other = std::ranges::find_if(hashes, [&](const auto& hash) { return hash != hashes[0]; });
  if (other == hashes.end()) return std::nullopt;
  const int64_t rank = other - hashes.begin();
  return RankDifference{rank, broadcast_bytes(ranks, mine, rank, "start"),
                        broadcast_bytes(ranks, mine, /*root=*/0, "start")};
}

void check_program(const std::string& version, Collectives& ranks) {
  if (const auto difference = find_difference(version, ranks))
    throw RanksDiffer(ExitStatus::kUsage, difference->name() + " runs another dtopp than rank 0 (" +
                                              difference->there + ", rank 0 " + difference->first +
                                              "): install the same on all hosts");
}

void check_ranks(const RunConfig& config, const at::Device& device, Collectives& ranks) {
  if (ranks.size() == 1) return;
  if (const auto difference = find_difference(to_yaml(config), ranks)) {
    std::string keys;
    for (const std::string& key : differing_keys(parse_run_config(difference->there, "its configuration"),
                                                 parse_run_config(difference->first, "rank 0's")))
      keys += (keys.empty() ? "" : ", ") + key;
    throw RanksDiffer(ExitStatus::kUsage, difference->name() +
                                              " has another configuration than rank 0 (different: " + keys +
                                              "): start all ranks with the same file and overrides");
  }
  if (!device.is_cpu())
    throw UsageError("training.device: several ranks train on CPUs only; set it to cpu, or start one rank");
}

void check_data(const TrainingData& data, Collectives& ranks) {
  std::string mine;
  for (const auto& [source, hash] : data.content_hashes) mine += hash + " " + source + "\n";
  const auto difference = find_difference(mine, ranks);
  if (!difference) return;
  std::istringstream there(difference->there), first(difference->first);
  std::string source, line;
  while (std::getline(there, source) && std::getline(first, line) && source == line) {
  }
  throw RanksDiffer(ExitStatus::kData, difference->name() + " has other data than rank 0: " +
                                           source.substr(source.find(' ') + 1) +
                                           " does not hold the same there; copy it again");
}

bool any_rank(Collectives& ranks, bool here) {
  const at::Tensor count = at::full({1}, here ? 1.0 : 0.0, at::kDouble);
  ranks.all_reduce_sum(count, "agreement").wait();
  return count.item<double>() != 0;
}

}  // namespace dtopp
