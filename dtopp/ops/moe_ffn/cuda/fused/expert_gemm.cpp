#include "dtopp/ops/moe_ffn/cuda/fused/expert_gemm.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {
namespace {

constexpr std::string_view kNone = "grouped_mm", kAll = "fused";

// Atomic, because compute threads (including autograd's) read it. An environment variable could not be
// written while they run.
std::atomic<unsigned long> chosen{0};

std::string listed(const FusedKernelSet& fused, std::string_view between) {
  std::string text;
  for (size_t p = 0; p < fused.size(); ++p)
    if (fused[p]) text.append(text.empty() ? "" : between).append(kExpertGemmNames[p]);
  return text;
}

}  // namespace

std::optional<ExpertGemm> expert_gemm_named(std::string_view name) {
  const auto* known = std::ranges::find(kExpertGemmNames, name);
  if (known == kExpertGemmNames.end()) return std::nullopt;
  return static_cast<ExpertGemm>(known - kExpertGemmNames.begin());
}

std::optional<FusedKernelSet> parse_fused_kernels(std::string_view text) {
  if (text == kNone) return FusedKernelSet();
  if (text == kAll) return ~FusedKernelSet();
  FusedKernelSet fused;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const auto gemm = expert_gemm_named(text.substr(begin, end - begin));
    if (!gemm) return std::nullopt;
    fused.set(static_cast<size_t>(*gemm));
    begin = end + 1;
  }
  return fused;
}

std::string fused_kernels_text(const FusedKernelSet& fused) {
  return fused.none() ? std::string(kNone) : listed(fused, ",");
}

std::string known_fused_kernels() {
  return std::string(kNone) + ", " + std::string(kAll) + " or a list of " + listed(~FusedKernelSet(), ", ");
}

std::optional<FusedKernelSet> requested_fused_kernels() {
  const char* wish = std::getenv("DTOPP_MOE_KERNELS");
  if (wish == nullptr || *wish == 0) return std::nullopt;
  const auto fused = parse_fused_kernels(wish);
  TORCH_CHECK(fused, "moe_ffn: DTOPP_MOE_KERNELS: expected ", known_fused_kernels(), ", got '", wish, "'");
  return fused;
}

FusedKernelSet fused_kernels() {
  const auto wish = requested_fused_kernels();
  return wish ? *wish : FusedKernelSet(chosen.load());
}

void set_fused_kernels(const FusedKernelSet& fused) { chosen.store(fused.to_ulong()); }

}  // namespace dtopp::ops
