#include "dtopp/train/rank_checks.h"

#include <array>
#include <sstream>

#include <ATen/Version.h>

#include "dtopp/device/device.h"
#include "dtopp/distributed/groups/rank_agreement.h"
#include "dtopp/ops/core/simd.h"
#include "dtopp/ops/gemm/linear.h"
#include "dtopp/ops/moe_ffn/cuda/fused/expert_gemm.h"

namespace dtopp {
namespace {

// Everything by which a processor selects kernels.
std::string kernels_on(const at::Device& device) {
  if (!device.is_cpu())
    return device_facts(device).name + " (fused kernels: " + fused_kernels_text(fused_kernels()) + ")";
  constexpr std::array<const char*, 3> kLoops = {"baseline", "AVX2", "AVX512"};
  return std::string("a CPU (torch: ") + at::get_cpu_capability() +
         ", dtopp: " + kLoops[static_cast<size_t>(widest_simd())] + (has_amx() ? ", AMX)" : ")");
}

}  // namespace

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

void agree_on_kernels(const RunConfig& config, const at::Device& device, Collectives& ranks) {
  if (!config.parallel.reproducible || ranks.size() == 1) return;
  const std::string first = broadcast_bytes(ranks, fused_kernels_text(fused_kernels()), /*root=*/0, "start");
  set_fused_kernels(parse_fused_kernels(first).value());
  if (const auto difference = find_difference(kernels_on(device), ranks))
    throw RanksDiffer(ExitStatus::kUsage,
                      difference->name() + " computes on " + difference->there + ", rank 0 on " +
                          difference->first +
                          ", with other rounding; start all ranks on equal machines, or set "
                          "parallel.reproducible=false");
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
