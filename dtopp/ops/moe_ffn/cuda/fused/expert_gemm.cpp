#include "dtopp/ops/moe_ffn/cuda/fused/expert_gemm.h"

#include <algorithm>
#include <cstdlib>

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {
namespace {

constexpr std::string_view kNone = "grouped_mm", kAll = "fused";

// The table: the GEMMs whose fused kernels are faster, or need less memory, than at::_grouped_mm.
FusedKernelSet preferred_kernels(int64_t capability) {
  using enum ExpertGemm;
  if (capability < kFusedMinCapability) return {};
  FusedKernelSet set;
  switch (capability / 10) {
    case 9:
      // On an H200 (benchmarks/results/h200.jsonl) a layer computes 578 TFLOP/s with these four, by wgmma.
      // It computes 575 with none and 557 with all, and needs 25 % more memory with none. The two in the
      // middle go together: each gathers rows of dy, for which at::_grouped_mm needs a copy.
      for (const ExpertGemm gemm : {kActivation, kActivationGradient, kDownGradient, kGateUpGradient})
        set.set(static_cast<size_t>(gemm));
      return set;
    case 10:  // at::_grouped_mm has a kernel; ours use mma there and have not been measured
      return {};
    default:  // at::_grouped_mm loops over experts and waits for the device, so all use mma
      return ~FusedKernelSet();
  }
}

std::string listed(const FusedKernelSet& fused, std::string_view between) {
  std::string text;
  for (size_t p = 0; p < fused.size(); ++p)
    if (fused[p]) text.append(text.empty() ? "" : between).append(kExpertGemmNames[p]);
  return text;
}

}  // namespace

std::optional<FusedKernelSet> parse_fused_kernels(std::string_view text) {
  if (text == kNone) return FusedKernelSet();
  if (text == kAll) return ~FusedKernelSet();
  FusedKernelSet fused;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const auto* known = std::ranges::find(kExpertGemmNames, text.substr(begin, end - begin));
    if (known == kExpertGemmNames.end()) return std::nullopt;
    fused.set(static_cast<size_t>(known - kExpertGemmNames.begin()));
    begin = end + 1;
  }
  return fused;
}

std::string fused_kernels_text(const FusedKernelSet& fused) {
  return fused.none() ? std::string(kNone) : listed(fused, ",");
}

std::optional<FusedKernelSet> requested_fused_kernels() {
  const char* wish = std::getenv("DTOPP_MOE_KERNELS");
  if (wish == nullptr || *wish == 0) return std::nullopt;
  const auto fused = parse_fused_kernels(wish);
  TORCH_CHECK(fused, "moe_ffn: DTOPP_MOE_KERNELS: expected ", kNone, ", ", kAll, " or a list of ",
              listed(~FusedKernelSet(), ", "), ", got '", wish, "'");
  return fused;
}

FusedKernelSet fused_kernels(int64_t capability) {
  const auto wish = requested_fused_kernels();
  return wish ? *wish : preferred_kernels(capability);
}

}  // namespace dtopp::ops
