#include "dtopp/train/rank_agreement.h"

#include "dtopp/base/errors.h"
#include "dtopp/checkpoint/run_directory.h"

namespace dtopp {

void check_ranks(const RunConfig& config, const at::Device& device, Collectives& ranks) {
  if (ranks.size() == 1) return;
  if (!device.is_cpu())
    throw UsageError("training.device: several ranks train on CPUs only; set it to cpu, or start one rank");
  const std::string mine = to_yaml(config);
  if (broadcast_bytes(ranks, mine, /*root=*/0, "start") != mine)
    throw UsageError(
        "rank " + std::to_string(ranks.rank()) +
        " has another configuration than rank 0: start all ranks with the same file and overrides");
}

bool any_rank(Collectives& ranks, bool here) {
  const at::Tensor count = at::full({1}, here ? 1.0 : 0.0, at::kDouble);
  ranks.all_reduce_sum(count, "agreement").wait();
  return count.item<double>() != 0;
}

std::optional<Checkpoint> checkpoint_to_resume(const std::filesystem::path& run, Collectives& ranks,
                                               const std::function<void(const std::string&)>& warn) {
  std::optional<Checkpoint> newest;
  if (ranks.rank() == 0) newest = newest_checkpoint(checkpoints_of(run), warn);
  if (ranks.size() == 1) return newest;
  const std::string path =
      broadcast_bytes(ranks, newest ? newest->path().string() : std::string(), /*root=*/0, "start");
  if (ranks.rank() > 0 && !path.empty()) newest.emplace(std::filesystem::path(path));
  return newest;
}

}  // namespace dtopp
