#include "dtopp/distributed/rank_agreement.h"

#include <algorithm>

#include "dtopp/base/hash.h"

namespace dtopp::distributed {
std::optional<RankDifference> find_difference(const std::string& mine, Collectives& ranks) {
  if (ranks.size() == 1) return std::nullopt;
  const auto hashes = gather_bytes(ranks, hash_bytes(std::as_bytes(std::span(mine))), "start");
  const auto other = std::ranges::find_if(hashes, [&](const auto& hash) { return hash != hashes[0]; });
  if (other == hashes.end()) return std::nullopt;
  const int64_t rank = other - hashes.begin();
  return RankDifference{rank, broadcast_bytes(ranks, mine, rank, "start"),
                        broadcast_bytes(ranks, mine, /*root=*/0, "start")};
}

void check_devices(const std::string& identity, Collectives& ranks) {
  if (ranks.size() == 1) return;
  const std::vector<std::string> devices = gather_bytes(ranks, identity, "start");
  const auto end = devices.end();
  for (auto device = devices.begin(); device != end; ++device) {
    const int64_t rank = device - devices.begin();
    if ((*device == "cpu") != (devices[0] == "cpu"))
      throw RanksDiffer(ExitStatus::kUsage, "rank ", rank, " computes on ", *device, ", rank 0 on ",
                        devices[0], "; choose cpu or cuda for all ranks");
    const auto same = std::find(device + 1, end, *device);
    if (*device != "cpu" && same != end)
      throw RanksDiffer(ExitStatus::kUsage, "ranks ", rank, " and ", same - devices.begin(),
                        " compute on the same device, ", *device,
                        "; start one rank per CUDA device, or choose cpu");
  }
}

bool any_of(Collectives& ranks, bool here) {
  const at::Tensor count = at::full({1}, here ? 1.0 : 0.0, at::kDouble);
  ranks.all_reduce_sum(count, "agreement").wait();
  return count.item<double>() != 0;
}

}  // namespace dtopp::distributed
