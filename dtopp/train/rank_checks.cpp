#include "dtopp/train/rank_checks.h"

#include <array>
#include <sstream>

#include <ATen/Version.h>

#include "dtopp/device/device.h"
#include "dtopp/distributed/groups/rank_agreement.h"
#include "dtopp/ops/core/simd.h"
#include "dtopp/ops/gemm/linear.h"
#include "dtopp/ops/moe_ffn/cuda/fused/expert_gemm.h"

namespace dtopp::train {
namespace {

// Everything by which a processor selects kernels.
std::string kernels_on(const at::Device& device) {
  if (!device.is_cpu())
    return device::device_facts(device).name +
           " (fused kernels: " + ops::fused_kernels_text(ops::fused_kernels()) + ")";
  constexpr std::array<const char*, 3> kLoops = {"baseline", "AVX2", "AVX512"};
  return std::string("a CPU (torch: ") + at::get_cpu_capability() +
         ", dtopp: " + kLoops[static_cast<size_t>(ops::widest_simd())] + (ops::has_amx() ? ", AMX)" : ")");
}

}  // namespace

void check_configuration(const config::RunConfig& config, distributed::Collectives& ranks) {
  if (const auto difference = distributed::find_difference(config::to_yaml(config), ranks)) {
    std::string keys;
    for (const std::string& key :
         config::differing_keys(config::parse_run_config(difference->there, "its configuration"),
                                config::parse_run_config(difference->first, "rank 0's")))
      keys += (keys.empty() ? "" : ", ") + key;
    throw distributed::RanksDiffer(
        ExitStatus::kUsage, difference->name() + " has another configuration than rank 0 (different: " +
                                keys + "); start all ranks with the same file and overrides");
  }
}

void agree_on_kernels(const config::RunConfig& config, const at::Device& device,
                      distributed::Collectives& ranks) {
  if (!config.parallel.reproducible || ranks.size() == 1) return;
  const std::string first =
      distributed::broadcast_bytes(ranks, ops::fused_kernels_text(ops::fused_kernels()), /*root=*/0, "start");
  ops::set_fused_kernels(ops::parse_fused_kernels(first).value());
  if (const auto difference = distributed::find_difference(kernels_on(device), ranks))
    throw distributed::RanksDiffer(ExitStatus::kUsage,
                                   difference->name() + " computes on " + difference->there + ", rank 0 on " +
                                       difference->first +
                                       ", with other rounding; start all ranks on equal machines, or set "
                                       "parallel.reproducible=false");
}

void check_data(const models::TrainingData& data, distributed::Collectives& ranks) {
  std::string mine;
  for (const auto* hashes : {&data.training_hashes, &data.validation_hashes})
    for (const auto& [source, hash] : *hashes) mine.append(hash).append(" ").append(source).append("\n");
  const auto difference = distributed::find_difference(mine, ranks);
  if (!difference) return;
  std::istringstream there(difference->there), first(difference->first);
  std::string source, line;
  while (std::getline(there, source) && std::getline(first, line) && source == line) {
  }
  throw distributed::RanksDiffer(ExitStatus::kData, difference->name() + " has other data than rank 0: " +
                                                        source.substr(source.find(' ') + 1) +
                                                        " has other content there; copy it again");
}

}  // namespace dtopp::train
